"""Rows that must get the same answer are computed once."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from daft_vllm.engine.requests.outcome import Outcome
from daft_vllm.engine.scheduling.row import Row

MEMORY_BYTES = 64 << 20
"""Memory for finished answers. Later rows that must get the same answer take it from there."""
_OVERHEAD_BYTES = 400


class Duplicates:
    """Rows that have no answer yet, and recent answers, both by the digest of everything that determines the answer.

    Not thread-safe.

    Args:
        memory_bytes: memory for answers, counted as the characters of their texts and an estimate of Python's
            overhead. When it is full, the older half of the answers is dropped.
    """

    def __init__(self, memory_bytes: int = MEMORY_BYTES) -> None:
        self._leaders: dict[bytes, Row] = {}
        self._memory_bytes = memory_bytes
        self._used_bytes = 0
        # Newer and older answers, in two halves: keeping single answers in order would cost a microsecond for each.
        self._answers: dict[bytes, Outcome] = {}
        self._older: dict[bytes, Outcome] = {}

    def split_new_and_known(self, rows: Iterable[Row]) -> tuple[list[Row], list[tuple[Row, Outcome]]]:
        """Return the rows to compute, and the rows with a known answer, each with that answer.

        All other rows are twins of rows that have no answer yet. ``finish`` returns them later.
        """
        new: list[Row] = []
        known: list[tuple[Row, Outcome]] = []
        for row in rows:
            if row.digest is None:
                new.append(row)
            elif (leader := self._leaders.get(row.digest)) is not None:
                if leader.twins is None:
                    leader.twins = []
                leader.twins.append(row)
            elif (answer := self._answers.get(row.digest) or self._older.get(row.digest)) is not None:
                known.append((row, answer))
            else:
                self._leaders[row.digest] = row
                new.append(row)
        return new, known

    def finish(self, row: Row, outcome: Outcome) -> list[Row]:
        """Remember the outcome of a computed row, and return the row's twins. Failures are not remembered."""
        if row.digest is None:
            return []
        self._leaders.pop(row.digest, None)
        if outcome.error is None:
            self._remember(row.digest, outcome)
        twins, row.twins = row.twins, None
        return twins or []

    def drop(self, row: Row, unwanted: Callable[[Row], bool]) -> tuple[Row | None, list[Row]]:
        """Forget an unwanted row that has no answer yet.

        Returns:
            The twin to compute in its place (None if no wanted twin is left), and the unwanted twins.
        """
        removed = self.prune(row, unwanted)
        twins, row.twins = row.twins, None
        if row.digest is not None:
            self._leaders.pop(row.digest, None)
        if not twins:
            return None, removed
        leader, *others = twins
        leader.twins = others or None
        assert leader.digest is not None
        self._leaders[leader.digest] = leader
        return leader, removed

    def prune(self, row: Row, unwanted: Callable[[Row], bool]) -> list[Row]:
        """Remove the unwanted twins of a row, and return them."""
        twins = row.twins or []
        removed = [twin for twin in twins if unwanted(twin)]
        if removed:
            row.twins = [twin for twin in twins if not unwanted(twin)] or None
        return removed

    def forget(self) -> None:
        """Forget all answers. Rows that have no answer yet are not affected."""
        self._answers, self._older, self._used_bytes = {}, {}, 0

    def _remember(self, digest: bytes, outcome: Outcome) -> None:
        self._answers[digest] = outcome
        self._used_bytes += _OVERHEAD_BYTES + len(outcome.text or "")
        if self._used_bytes > self._memory_bytes // 2:
            self._older, self._answers, self._used_bytes = self._answers, {}, 0
