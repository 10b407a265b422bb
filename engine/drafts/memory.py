"""What earlier rows wrote, by what came before it: the source of guesses."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import NamedTuple

MOST_CONTEXTS = 100_000
"""Contexts that are kept in each of two generations: about 30 MB each."""
_MOST_TOKENS = 8
"""Different tokens that are counted in a context. Contexts with more have none that is worth a guess."""
_PRIOR = 4.0
"""How many guesses the estimate from counts alone is worth, beside those that were seen to be right or wrong."""
_FORGET = 0.98
_LEVELS = 8
_SEEN = (1, 2, 4, 8, 16)


class Context:
    """The tokens that came after a context.

    Attributes:
        total: how often the context came.
        best: the token that came most often.
        count: how often it came.
    """

    __slots__ = ("_counts", "best", "count", "total")

    def __init__(self) -> None:
        self.total = self.count = 0
        self.best = -1
        self._counts: dict[int, int] = {}

    def add(self, token: int) -> None:
        """Count a token."""
        self.total += 1
        counts = self._counts
        count = counts.get(token, 0) + 1
        if count > 1 or len(counts) < _MOST_TOKENS:
            counts[token] = count
            if count > self.count:
                self.best, self.count = token, count


class Memory:
    """Contexts by their keys. Those that didn't come for long are forgotten: the number of contexts is limited."""

    def __init__(self, most: int = MOST_CONTEXTS) -> None:
        self._most = most
        self._young: dict[Hashable, Context] = {}
        self._old: dict[Hashable, Context] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def get(self, key: Hashable) -> Context | None:
        """Return a context. None: it never came, or is forgotten."""
        found = self._young.get(key)
        return found if found is not None else self._old.get(key)

    def of(self, key: Hashable) -> Context:
        """Return a context, a new one if it never came or is forgotten."""
        context = self._young.get(key)
        if context is None:
            context = self._old.pop(key, None) or Context()
            if len(self._young) >= self._most:
                self._young, self._old = {}, self._young
            self._young[key] = context
        return context


class Guess(NamedTuple):
    """A guess of the next token.

    Attributes:
        token: its id.
        right: the estimated probability that it is right.
        source: where it is from.
        place: the counter of guesses of this kind in ``Rates``.
    """

    token: int
    right: float
    source: str
    place: tuple[str, int, int]


class Rates:
    """How often guesses were right, by their source and by how sure the source is. Old guesses count less."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int, int], list[float]] = {}

    def guess(self, source: str, context: Context) -> Guess:
        """Return the guess after a context."""
        sure = (context.count + 0.5) / (context.total + 1.0)
        seen = next((i for i, most in enumerate(_SEEN) if context.total <= most), len(_SEEN))
        return self.of(source, context.best, sure, seen)

    def of(self, source: str, token: int, sure: float, seen: int) -> Guess:
        """Return a guess.

        Args:
            source: its name.
            token: the token.
            sure: the source's own estimate that it is right.
            seen: how much the source has seen: guesses with another number are counted apart.
        """
        place = (source, min(int(sure * _LEVELS), _LEVELS - 1), seen)
        right, total = self._seen.get(place, (0.0, 0.0))
        return Guess(token, (right + _PRIOR * sure) / (total + _PRIOR), source, place)

    def count(self, guess: Guess, token: int) -> None:
        """Count whether a guess was right, whether or not it was sent."""
        counts = self._seen.setdefault(guess.place, [0.0, 0.0])
        counts[0] = counts[0] * _FORGET + (guess.token == token)
        counts[1] = counts[1] * _FORGET + 1.0

    def __iter__(self) -> Iterator[tuple[tuple[str, int, int], float, float]]:
        return ((place, right, total) for place, (right, total) in self._seen.items())
