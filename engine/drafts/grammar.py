"""What a grammar forces, asked of the library that enforces it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Forced(Protocol):
    """A grammar at one place of an answer. What is accepted is rolled back afterwards."""

    def text(self) -> str | bytes:
        """Return the text that has to follow. Empty: there is a choice, or the answer may end."""

    def text_before(self, tokens: Sequence[int]) -> str | bytes:
        """Return the text that had to follow before the last ``tokens``."""

    def accept(self, token: int) -> bool:
        """Go on after a token. Return False, and stay, if the token is forbidden, or if nothing may follow it."""

    def rollback(self, tokens: int) -> None:
        """Go back by a number of tokens."""


class _Nothing:
    """No grammar: everything is allowed."""

    def text(self) -> str:
        return ""

    def text_before(self, tokens: Sequence[int]) -> str:
        return ""

    def accept(self, token: int) -> bool:
        return True

    def rollback(self, tokens: int) -> None:
        pass


class _Xgrammar:
    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def text(self) -> str:
        return "" if self._matcher.is_terminated() else str(self._matcher.find_jump_forward_string())

    def text_before(self, tokens: Sequence[int]) -> str:
        return str(_text_before(self, tokens))

    def accept(self, token: int) -> bool:
        return not self._matcher.is_terminated() and bool(self._matcher.accept_token(token))

    def rollback(self, tokens: int) -> None:
        if tokens:
            self._matcher.rollback(tokens)


class _Guidance:
    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def text(self) -> bytes:
        return b"" if self._matcher.is_stopped() else bytes(self._matcher.compute_ff_bytes())

    def text_before(self, tokens: Sequence[int]) -> bytes:
        return b"" if self._matcher.is_stopped() else bytes(_text_before(self, tokens))  # type: ignore[arg-type]

    def accept(self, token: int) -> bool:
        # A matcher that has stopped can't go back, and one that refuses a token is broken.
        matcher = self._matcher
        if matcher.is_stopped() or matcher.validate_tokens([token]) != 1:
            return False
        matcher.consume_token(token)
        if matcher.is_stopped():
            matcher.rollback(1)
            return False
        return True

    def rollback(self, tokens: int) -> None:
        if tokens:
            self._matcher.rollback(tokens)


def _text_before(grammar: Forced, tokens: Sequence[int]) -> str | bytes:
    grammar.rollback(len(tokens))
    text = grammar.text()
    for token in tokens:
        grammar.accept(token)
    return text


NOTHING: Forced = _Nothing()


def forced_by(grammar: Any) -> Forced | None:
    """Return what one of vLLM's grammars forces. None: it is of a library that isn't known here."""
    if hasattr(grammar, "ll_matcher"):
        return _Guidance(grammar.ll_matcher)
    if hasattr(grammar, "matcher"):
        return _Xgrammar(grammar.matcher)
    return None
