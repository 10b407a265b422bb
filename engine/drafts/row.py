"""What is known of a row while its answer is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from daft_vllm.engine.drafts.memory import Guess, Memory, Rates

_SUFFIXES = (2, 5)
"""Lengths of the ends of an answer by which others are found that went on from the same tokens."""
_MOST_MATCH = 4
_LOOK, _LEAST, _FOLLOWED = 4_000, 0.01, 8
"""After so many tokens rows are looked at again. If fewer than 1% of the tokens were guessed, one row in 8 is followed:
following a row takes 10 us a token."""


class Group:
    """Rows with the same constraint.

    Attributes:
        memory: what they wrote.
        rates: how often guesses were right.
        first: what is forced at the beginning. None: no row has begun.
        rests: whether guesses bring next to nothing here. Then only some rows are followed, to see when that changes.
    """

    def __init__(self) -> None:
        self.first: str | bytes | None = None
        self.memory = Memory()
        self.rates = Rates()
        self.rests = False
        self._rows = self._tokens = self._right = 0

    def is_followed(self) -> bool:
        """Count a row that begins, and return whether its tokens are to be looked at."""
        self._rows += 1
        return not self.rests or self._rows % _FOLLOWED == 0

    def count(self, tokens: int, right: int) -> None:
        """Count tokens of rows that are followed, and how many of them were guessed."""
        self._tokens += tokens
        self._right += right
        if self._tokens >= _LOOK:
            self.rests = self._right < _LEAST * self._tokens
            self._tokens = self._right = 0


class State:
    """A place in an answer: what the next token is guessed from.

    Attributes:
        forced: the text that the grammar forces here. Empty: none. It is the rest of what is forced, so that it is the
            same whatever tokens its beginning was written in.
        field: what was forced last.
        since: stands for the tokens since then.
        last: the last tokens, at most as many as the longest suffix.
        place: of the next token in the prompt, if the last tokens are copied from there. -1: they are not.
        match: how many were copied.
    """

    __slots__ = ("field", "forced", "last", "match", "place", "since")

    def __init__(self) -> None:
        self.forced: str | bytes = ""
        self.field: str | bytes = ""
        self.since = 0
        self.last: tuple[int, ...] = ()
        self.place = -1
        self.match = 0

    def copy(self) -> State:
        """Return a state that changes by itself."""
        made = State()
        made.forced, made.field, made.since = self.forced, self.field, self.since
        made.last, made.place, made.match = self.last, self.place, self.match
        return made

    def contexts(self) -> Iterator[tuple[str, tuple[object, ...]]]:
        """Yield sources and keys of contexts, the most specific one first."""
        if self.forced:
            yield "forced", (0, self.forced)
            return
        yield "field", (1, self.field, self.since)
        for length in reversed(_SUFFIXES):
            if len(self.last) >= length:
                yield "answers", (length, *self.last[-length:])

    def advance(self, token: int, forced: str | bytes, prompt: Prompt) -> None:
        """Go on after a token.

        Args:
            token: the token.
            forced: the text that is forced after it.
            prompt: the row's prompt.
        """
        if forced and not self.forced:
            self.field = forced
        self.since = 0 if forced or self.forced else hash((self.since, token))
        self.forced = forced
        self.last = (*self.last[1 - _SUFFIXES[-1] :], token)
        self.place, self.match = prompt.follow(token, self.place, self.match)


class Prompt:
    """A row's prompt, in which tokens of its answer are looked up.

    A word has another token at the beginning of a value than after a space. So tokens are compared by ``plain``.

    Args:
        tokens: ids.
        plain: returns the token of the same text without a space before it.
    """

    def __init__(self, tokens: Sequence[int], plain: Callable[[int], int]) -> None:
        self._tokens = tokens
        self._plain = plain
        self._places: dict[int, int] | None = None

    def follow(self, token: int, place: int, match: int) -> tuple[int, int]:
        """Return the place after ``token`` in the prompt and how many tokens are copied; -1 and 0: it isn't there."""
        plain = self._plain
        wanted = plain(token)
        if place >= 0 and place < len(self._tokens) and plain(self._tokens[place]) == wanted:
            return place + 1, match + 1
        if self._places is None:
            self._places = {plain(one): i + 1 for i, one in enumerate(self._tokens)}
        place = self._places.get(wanted, -1)
        return (place, 1) if 0 <= place < len(self._tokens) else (-1, 0)

    def guess(self, state: State, rates: Rates) -> Guess | None:
        """Return the token that follows in the prompt. None: nothing is copied."""
        if state.place < 0 or state.place >= len(self._tokens):
            return None
        match = min(state.match, _MOST_MATCH)
        return rates.of("prompt", self._tokens[state.place], match / (match + 2), match)


def guesses(state: State, prompt: Prompt, group: Group) -> list[Guess]:
    """Return all guesses of the next token, one for each source that has one."""
    made = []
    for source, key in state.contexts():
        context = group.memory.get(key)
        if context is not None and context.best >= 0:
            made.append(group.rates.guess(source, context))
    if not state.forced and (guess := prompt.guess(state, group.rates)) is not None:
        made.append(guess)
    return made


def learn(state: State, token: int, prompt: Prompt, group: Group) -> None:
    """Count which guesses of a token are right, and remember the token."""
    for source, key in state.contexts():
        context = group.memory.of(key)
        if context.total:
            group.rates.count(group.rates.guess(source, context), token)
        context.add(token)
    if not state.forced and (guess := prompt.guess(state, group.rates)) is not None:
        group.rates.count(guess, token)
