"""Rows that were inside vLLM when it died: they are sent again in a way that finds a row that kills vLLM."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from daft_vllm.engine.scheduling.row import Row

PROGRESS = 10
"""Earlier deaths are forgotten once the engine has answered this many times ``max_num_seqs`` rows."""


class Replay:
    """Rows that were inside vLLM when it died, until they are sent again.

    Nobody can see from outside which row vLLM died of, or whether it died of a row at all. So these rows are sent again
    before all others, as many at once as the square root of their number. If vLLM dies again, each row that was inside
    it is sent alone. If it dies with one such row, that row is to blame. This finds one row in 512 with three deaths,
    and takes 22 plus 22 times as long as one row. Halving would take nine deaths, and each death costs a start.

    Not thread-safe.
    """

    def __init__(self) -> None:
        # Of each group: how many of its rows may be inside vLLM at once, and the rows that wait. Only rows of the last
        # group are sent, until all of them have left vLLM.
        self._groups: list[tuple[int, deque[Row]]] = []

    def __iter__(self) -> Iterator[Row]:
        return (row for _, rows in self._groups for row in rows)

    def blame(self, rows: Sequence[Row], *, others: bool = False) -> Row | None:
        """Take the rows that were inside vLLM when it died. Return the row that it died of, None if that is not known.

        Args:
            rows: the rows.
            others: whether vLLM may have died of something else than these rows. Then no row is blamed.
        """
        for row in rows:
            row.deaths += 1
        if len(rows) == 1 and rows[0].deaths > 1 and not others:
            return rows[0]
        if rows:
            self._groups.append((1 if self._groups else math.isqrt(len(rows)), deque(rows)))
        return None

    def add(self, rows: Sequence[Row]) -> None:
        """Take rows that were inside another vLLM, which has ended for good. Each of them is sent alone."""
        if rows:
            self._groups.append((1, deque(rows)))

    def next(self, in_flight: int) -> Row | None:
        """Return the row to send now, with ``in_flight`` rows inside vLLM. None: no row is left, or it has to wait."""
        while self._groups:
            most, rows = self._groups[-1]
            if rows:
                return rows.popleft() if in_flight < most else None
            if in_flight:  # rows of this group: if vLLM dies now, it can only be one of them
                return None
            self._groups.pop()
        return None

    @property
    def limit(self) -> int:
        """How many rows may be inside vLLM at once. 0: no row is replayed, so there is no such limit."""
        return self._groups[-1][0] if self._groups else 0

    def remove(self, unwanted: Callable[[Row], bool]) -> list[Row]:
        """Remove and return the rows for which ``unwanted`` returns True."""
        removed = [row for row in self if unwanted(row)]
        self._groups = [(most, deque(row for row in rows if not unwanted(row))) for most, rows in self._groups]
        return removed


class RestartBudget:
    """How often vLLM may be started again: ``most`` times in a row. The count begins again after ``rows`` answers."""

    def __init__(self, most: int, rows: int) -> None:
        self._most = self._left = most
        self._rows = rows
        self._done = 0

    def allow(self, most: int) -> None:
        """Allow another number of starts from now on. Those that were used count."""
        self._left += most - self._most
        self._most = most

    def spend(self, done: int) -> bool:
        """Use up one start. Return whether vLLM may be started again, with ``done`` rows answered in all."""
        if done - self._done >= self._rows:
            self._left = self._most
        self._done = done
        self._left -= 1
        return self._left >= 0
