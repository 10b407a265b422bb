r"""Writes random answers with a grammar library, to find out before a model is loaded whether it keeps up.

llguidance limits the work of a step. Where a step needs more, it reports an error and then allows only the end of the
text: the answer would end in the middle. xgrammar has no limit, and a step may take seconds, in which no row goes on.
Both happen only while an answer is written, not when the grammar is built: with large counts in patterns, such as
``^(\S+\s+){0,499}\S+$`` with a ``maxLength``, or with counts of what may be empty, ``^([a-z]{0,30} ?){0,20}$``.
"""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable
from typing import Any, NamedTuple

LIMITS: dict[str, Any] = {"step_lexer_fuel": 2_000_000, "initial_lexer_fuel": 10_000_000, "step_max_items": 200_000}
"""Limits of llguidance's ``LLParserLimits``: ten, ten and four times its own. A step at the first limit takes 0.1
to 0.4 seconds; at fifty times llguidance's own limit, one took 9 seconds."""
SECONDS = 4.0
"""How long one random answer may take. Most take a hundredth of it."""
DEAD_END = "it allows a text that can neither go on nor end"
_TOKENS = 400
"""The longest random answer."""
_CLOSING = '"]},'
_ANSWERS = (None, 0.5, 0.0)
"""How often a token with a closing character is taken where one may be, in each answer. None: as it comes."""
_END = 256


class _Walk(NamedTuple):
    """A library in the middle of an answer.

    Attributes:
        allowed: returns the tokens that may come next, as an array of numpy. Empty: the answer has ended.
        take: takes a token.
        text: returns a token's text.
        error: returns why the library gave up. Empty: it didn't.
    """

    allowed: Callable[[], Any]
    take: Callable[[int], object]
    text: Callable[[int], str]
    error: Callable[[], str]


def parser_limits() -> Any:
    """Return ``LIMITS`` as llguidance takes them."""
    import llguidance

    return llguidance.LLParserLimits(**LIMITS)


def guidance_failure(grammar: str, tokenizer: Any = None) -> str | None:
    """Return why llguidance gave up on one of three random answers, None if it didn't.

    The same grammar has the same answers each time.

    Args:
        grammar: in llguidance's own notation.
        tokenizer: llguidance's ``LLTokenizer``. None: each byte is a token.
    """
    import llguidance

    tokenizer = tokenizer or bytes_tokenizer()
    first = llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=parser_limits())

    def begin() -> _Walk:
        matcher = first.deep_copy()

        def allowed() -> Any:
            tokens = allowed_tokens(matcher.compute_bitmask())
            return tokens[:0] if matcher.is_stopped() else tokens[tokens != tokenizer.eos_token]

        return _Walk(allowed, matcher.consume_token, lambda token: tokenizer.decode_str([token]), matcher.get_error)

    return first.get_error().partition("\n")[0] or _failure(begin)


def xgrammar_failure(grammar: Any) -> str | None:
    """Return why xgrammar can't keep up with one of three random answers, None if it can. Each byte is a token.

    Args:
        grammar: xgrammar's ``Grammar``.
    """
    import xgrammar

    compiled = _bytes_of_xgrammar().compile_grammar(grammar)
    mask = xgrammar.allocate_token_bitmask(1, _END + 1)

    def begin() -> _Walk:
        matcher = xgrammar.GrammarMatcher(compiled)

        def allowed() -> Any:
            if not matcher.is_terminated():
                matcher.fill_next_token_bitmask(mask)
            tokens = allowed_tokens(mask.numpy().tobytes())
            return tokens[:0] if matcher.is_terminated() else tokens[tokens < _END]

        def error() -> str:
            can_end = matcher.is_terminated() or len(allowed_tokens(mask.numpy().tobytes()))
            return "" if can_end else DEAD_END

        return _Walk(allowed, matcher.accept_token, chr, error)

    return _failure(begin)


def _failure(begin: Callable[[], _Walk]) -> str | None:
    for closes in _ANSWERS:
        walk, draw, started = begin(), random.Random(0), time.monotonic()
        for length in range(_TOKENS):
            allowed = walk.allowed()
            if error := walk.error():
                return str(error).partition("\n")[0]
            if time.monotonic() - started > SECONDS:
                return f"it takes more than {SECONDS:g} seconds for {length} tokens"
            if not len(allowed):
                break
            token = int(draw.choice(allowed))
            for _ in range(20 if closes is not None else 0):
                if any(c in walk.text(token) for c in _CLOSING) == (draw.random() < (closes or 0.0)):
                    break
                token = int(draw.choice(allowed))
            walk.take(token)
    return None


def allowed_tokens(mask: bytes) -> Any:
    """Return the tokens that a mask allows, as an array of numpy."""
    import numpy

    return numpy.flatnonzero(numpy.unpackbits(numpy.frombuffer(mask, dtype=numpy.uint8), bitorder="little"))


@functools.cache
def bytes_tokenizer() -> Any:
    """Return llguidance's tokenizer in which each byte is a token."""
    import llguidance

    return llguidance.LLTokenizer("byte")


@functools.cache
def _bytes_of_xgrammar() -> Any:
    import xgrammar

    vocabulary = [*(bytes([byte]) for byte in range(_END)), b"<end>"]
    return xgrammar.GrammarCompiler(xgrammar.TokenizerInfo(vocabulary, stop_token_ids=[_END]), max_threads=1)
