"""Rows whose answers are the same, computed once."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from daft_vllm.engine.requests.outcome import Outcome
from daft_vllm.engine.scheduling.row import Row

MEMORY_BYTES = 64 << 20
"""How much of finished answers is kept for rows that are still to come."""
_OVERHEAD_BYTES = 400


class Duplicates:
    """Rows that are on their way, and answers that were given lately, by the digest of what determines the answer.

    Not thread-safe.

    Args:
        memory_bytes: how much is kept of answers, by the characters of their texts and an estimate of Python's
            overhead. At the limit the older half goes.
    """

    def __init__(self, memory_bytes: int = MEMORY_BYTES) -> None:
        self._leaders: dict[bytes, Row] = {}
        self._memory_bytes = memory_bytes
        self._used_bytes = 0
        # The newer half and the older one: an order of single answers costs a microsecond with each.
        self._answers: dict[bytes, Outcome] = {}
        self._older: dict[bytes, Outcome] = {}

    def first_of_their_kind(self, rows: Iterable[Row]) -> tuple[list[Row], list[tuple[Row, Outcome]]]:
        """Return the rows to compute, and those whose answer is known, with it.

        The others are twins of rows that are on their way, and get their outcome from ``finish``.
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
        """Remember the outcome of a row that was computed, and return its twins. Failures are not remembered."""
        if row.digest is None:
            return []
        self._leaders.pop(row.digest, None)
        if outcome.error is None:
            self._remember(row.digest, outcome)
        twins, row.twins = row.twins, None
        return twins or []

    def drop(self, row: Row, unwanted: Callable[[Row], bool]) -> tuple[Row | None, list[Row]]:
        """Forget a row on its way that is unwanted: return the twin that has to be computed in its place, if one is
        wanted, and the twins that are unwanted too.
        """
        gone = self.prune(row, unwanted)
        heirs, row.twins = row.twins, None
        if row.digest is not None:
            self._leaders.pop(row.digest, None)
        if not heirs:
            return None, gone
        heir, *others = heirs
        heir.twins = others or None
        assert heir.digest is not None
        self._leaders[heir.digest] = heir
        return heir, gone

    def prune(self, row: Row, unwanted: Callable[[Row], bool]) -> list[Row]:
        """Take the unwanted twins off a row, and return them."""
        twins = row.twins or []
        gone = [twin for twin in twins if unwanted(twin)]
        if gone:
            row.twins = [twin for twin in twins if not unwanted(twin)] or None
        return gone

    def forget(self) -> None:
        """Forget the answers that were given. Rows on their way are not concerned."""
        self._answers, self._older, self._used_bytes = {}, {}, 0

    def _remember(self, digest: bytes, outcome: Outcome) -> None:
        self._answers[digest] = outcome
        self._used_bytes += _OVERHEAD_BYTES + len(outcome.text or "")
        if self._used_bytes > self._memory_bytes // 2:
            self._older, self._answers, self._used_bytes = self._answers, {}, 0
