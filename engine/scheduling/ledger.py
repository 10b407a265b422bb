"""The account of all rows: they wait, are inside vLLM, or wait for the answer of an equal row."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from daft_vllm.engine.requests.outcome import Outcome
from daft_vllm.engine.requests.stats import EngineStats
from daft_vllm.engine.scheduling.duplicates import Duplicates
from daft_vllm.engine.scheduling.queue import PrefixQueue
from daft_vllm.engine.scheduling.replay import Replay
from daft_vllm.engine.scheduling.row import Call, Row


class Ledger:
    """Keeps every row that has no outcome yet, in exactly one place, and counts rows.

    Only the engine's thread may call the methods, except those marked below. ``in_flight`` has the rows inside vLLM by
    the ids of their requests, in the order in which they were sent.
    """

    def __init__(self) -> None:
        self.in_flight: dict[str, Row] = {}
        self._dropped = False  # whether rows inside this vLLM were dropped: it may still run them
        self._queue = PrefixQueue(1, 1)  # until the model is loaded
        self._replay = Replay()
        self._duplicates = Duplicates()
        self._stats = EngineStats()
        self._lock = threading.Lock()
        self._busy_since: float | None = None
        self._opened = time.monotonic()

    # Called from any thread.

    def count_expected(self, rows: int, finished: Sequence[Outcome]) -> None:
        """Count rows that will be added, and the outcomes of rows that need no generation."""
        with self._lock:
            self._stats.rows += rows + len(finished)
            self._stats.pending += rows
            self._stats.unsent += len(finished)
            for outcome in finished:
                self._stats.finish(outcome)

    def count_abandoned(self, waiting: int, running: int = 0) -> None:
        """Count rows that will get no outcome, because their caller or the engine is gone."""
        with self._lock:
            self._stats.pending -= waiting
            self._stats.in_flight -= running
            self._stats.abandoned += waiting + running

    def snapshot(self) -> EngineStats:
        """Return the current counters."""
        now = time.monotonic()
        with self._lock:
            stats = replace(self._stats)
            busy_since = self._busy_since
        if busy_since is not None:
            stats.busy_seconds += now - busy_since
        stats.idle_seconds = now - self._opened - stats.busy_seconds
        stats.optimal_tokens = min(self._queue.optimal_tokens, stats.computed_tokens)
        return stats

    # Called from the engine's thread.

    @property
    def done(self) -> int:
        """Rows with an outcome."""
        return self._stats.done

    @property
    def replay_limit(self) -> int:
        """How many rows may be inside vLLM at once while rows are replayed. 0: no row is replayed."""
        return self._replay.limit

    def open(self, block_size: int, max_num_seqs: int) -> None:
        """Start to take rows, in the order that suits a vLLM with these sizes."""
        self._queue = PrefixQueue(block_size, max_num_seqs)
        self._opened = time.monotonic()

    def add(self, rows: Sequence[Row]) -> None:
        """Take rows that ``count_expected`` has counted. Rows with a known answer get it at once."""
        new, known = self._duplicates.split_new_and_known(rows)
        self._queue.push(new)
        for row, outcome in known:
            self._finish(row, outcome, duplicate=True)

    def next_row(self, has_room: Callable[[], bool]) -> Row | None:
        """Take the row to send to vLLM now. None: there is none.

        Args:
            has_room: returns whether vLLM should get one more row.
        """
        row = self._replay.next(len(self.in_flight))
        if row is None and not self._replay.limit and len(self._queue) and has_room():
            row = self._queue.pop()
        return row

    def sent(self, rows: Sequence[Row]) -> None:
        """Count rows that were just sent to vLLM, and the time in which vLLM has rows."""
        now, waited = time.monotonic(), 0.0
        for row in rows:
            row.sent_at = now
            if not row.deaths:
                row.queue_seconds = now - row.call.submitted_at
                waited += row.queue_seconds
        with self._lock:
            self._stats.pending -= len(rows)
            self._stats.in_flight += len(rows)
            self._stats.queue_seconds += waited
            self._count_busy(now)

    def answered(self, request_id: str, outcome: Outcome) -> None:
        """Give the row of a request and its twins their outcome. Does nothing if the row was dropped."""
        row = self.in_flight.pop(request_id, None)
        if row is None:
            return
        if row.items and row.first_with_media:  # the queue counted each medium as one token, its placeholder
            self._queue.optimal_tokens += row.prompt_tokens - row.size
        with self._lock:
            self._stats.in_flight -= 1
            self._stats.pending += 1
        self._finish_all(row, outcome)

    def requeue_in_flight(self, what: str, *, still_loading: bool) -> None:
        """Take back the rows that were inside vLLM when it died. The next vLLM gets them.

        If it is known which row vLLM died of, that row gets an error as its outcome instead.

        Args:
            what: how vLLM died.
            still_loading: whether some of these rows had not reached vLLM, because their media were being loaded.
        """
        rows = list(self.in_flight.values())
        self.in_flight.clear()
        with self._lock:
            self._stats.in_flight -= len(rows)
            self._stats.pending += len(rows)
            self._count_busy(time.monotonic())
        row = self._replay.blame(rows, others=self._dropped or still_loading)
        self._dropped = False
        if row is not None:
            reason = (
                f"{what} each of the {row.deaths} times that this row was inside it, the last time with no other row: "
                "change the row, or leave it out"
            )
            self._finish_all(row, Outcome.failed("engine_error", reason, prompt_tokens=row.prompt_tokens))

    def count_restart(self) -> None:
        """Count one restart of vLLM."""
        with self._lock:
            self._stats.restarts += 1

    def unanswered(self) -> list[Row]:
        """Return every row that has no outcome yet."""
        computed = [*self.in_flight.values(), *self._replay, *self._queue]
        return computed + [twin for row in computed for twin in row.twins or ()]

    def fail_all(self, error: Exception) -> None:
        """Fail every waiting call with ``error``."""
        lost = self.unanswered()
        self.count_abandoned(len(lost) - len(self.in_flight), len(self.in_flight))
        self.in_flight.clear()
        self._queue.remove(lambda row: True)
        self._replay = Replay()
        self._duplicates = Duplicates()
        for row in lost:
            row.twins = None
            row.call.fail(error)

    def drop(self, call: Call) -> list[str]:
        """Remove the rows of ``call``, and return the request ids of those inside vLLM.

        If other calls wait for the answer of a removed row, one of its twins is computed in its place.
        """

        def unwanted(row: Row) -> bool:
            return row.call is call

        waiting = [*self._replay.remove(unwanted), *self._queue.remove(unwanted)]
        running = {request_id: row for request_id, row in self.in_flight.items() if unwanted(row)}
        twins = [
            twin for row in self.unanswered() if not unwanted(row) for twin in self._duplicates.prune(row, unwanted)
        ]
        for request_id in running:
            del self.in_flight[request_id]
            self._dropped = True
        for row in [*waiting, *running.values()]:
            leader, removed = self._duplicates.drop(row, unwanted)
            twins += removed
            if leader is not None:
                self._queue.push([leader])
        self.count_abandoned(len(waiting) + len(twins), len(running))
        return list(running)

    def forget_answers(self) -> None:
        """Forget all answers: later rows are computed, even if an equal row was computed before."""
        self._duplicates.forget()

    def _finish_all(self, row: Row, outcome: Outcome) -> None:
        """Give a pending row and its twins their outcome."""
        twins = self._duplicates.finish(row, outcome)
        self._finish(row, outcome)
        for twin in twins:
            self._finish(twin, outcome, duplicate=True)

    def _finish(self, row: Row, outcome: Outcome, *, duplicate: bool = False) -> None:
        if duplicate:  # nothing was computed for it
            waited = time.monotonic() - row.call.submitted_at
            outcome = outcome._replace(cached_tokens=outcome.prompt_tokens, queue_seconds=waited, seconds=0.0)
        with self._lock:
            self._stats.pending -= 1
            self._stats.finish(outcome, duplicate=duplicate)
        row.call.put(row.index, outcome)

    def _count_busy(self, now: float) -> None:
        if self._busy_since is None and self.in_flight:
            self._busy_since = now
        elif self._busy_since is not None and not self.in_flight:
            self._stats.busy_seconds += now - self._busy_since
            self._busy_since = None
