"""What becomes of rows that were inside vLLM when it died: given out again, such that one that kills it is found."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from daft_vllm.engine.scheduling.row import Row

PROGRESS = 10
"""How many times an engine has to answer ``max_num_seqs`` rows for its earlier deaths to be forgotten."""


class Replay:
    """Rows that were inside vLLM when it died, until they are answered or known to be what it dies of.

    Which row it was, if it was one at all, can't be told from outside. They are given out again before all others, as
    many at once as the square root of their number. If vLLM dies of these, each of them is given out alone, and one
    that it dies of then is to blame. That finds one row in 512 by three deaths, and by 22 and 22 times as long as a row
    takes; halving would take nine deaths, each of which costs a start.

    Not thread-safe.
    """

    def __init__(self) -> None:
        # How many at once, and the rows that wait for it. The last is served, until all of its rows have left vLLM.
        self._groups: list[tuple[int, deque[Row]]] = []

    def __iter__(self) -> Iterator[Row]:
        return (row for _, rows in self._groups for row in rows)

    def blame(self, rows: Sequence[Row], *, others: bool = False) -> Row | None:
        """Take the rows that were inside vLLM when it died; return the one that it died of, if that is known.

        Args:
            rows: the rows.
            others: whether vLLM may have died of something else that it had.
        """
        for row in rows:
            row.deaths += 1
        if len(rows) == 1 and rows[0].deaths > 1 and not others:
            return rows[0]
        if rows:
            self._groups.append((1 if self._groups else math.isqrt(len(rows)), deque(rows)))
        return None

    def next(self, in_flight: int) -> Row | None:
        """Return the row to give to vLLM now, where ``in_flight`` rows are inside it; None: none, or not yet."""
        while self._groups:
            most, rows = self._groups[-1]
            if rows:
                return rows.popleft() if in_flight < most else None
            if in_flight:  # theirs: if vLLM dies, it has to be clear which of them it died of
                return None
            self._groups.pop()
        return None

    @property
    def at_once(self) -> int:
        """How many rows may be inside vLLM at once. 0: nothing is replayed, and any may."""
        return self._groups[-1][0] if self._groups else 0

    def remove(self, unwanted: Callable[[Row], bool]) -> list[Row]:
        """Take out and return the rows for which ``unwanted`` holds."""
        removed = [row for row in self if unwanted(row)]
        self._groups = [(most, deque(row for row in rows if not unwanted(row))) for most, rows in self._groups]
        return removed


class RestartBudget:
    """How often vLLM may be started again: ``most`` times in a row, between which it answers fewer than ``rows``."""

    def __init__(self, most: int, rows: int) -> None:
        self._most = self._left = most
        self._rows = rows
        self._done = 0

    def spend(self, done: int) -> bool:
        """Whether vLLM may be started again, where ``done`` rows have been answered in all."""
        if done - self._done >= self._rows:
            self._left = self._most
        self._done = done
        self._left -= 1
        return self._left >= 0
