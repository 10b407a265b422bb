"""The account of all rows: they wait, are inside vLLM, or wait for the answer of an equal row."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from daft_vllm.engine.requests.outcome import Outcome
from daft_vllm.engine.requests.stats import EngineStats
from daft_vllm.engine.scheduling.duplicates import Duplicates
from daft_vllm.engine.scheduling.lanes import Lane, Routes
from daft_vllm.engine.scheduling.queue import PrefixQueue
from daft_vllm.engine.scheduling.row import Call, Row


class Ledger:
    """Keeps every row that has no outcome yet, in exactly one place, and counts rows. For any number of threads.

    Each vLLM has a lane. Rows with the same prefix wait in the same lane.
    """

    def __init__(self) -> None:
        self._routes = Routes()
        self._duplicates = Duplicates()
        self._stats = EngineStats()
        self._lock = threading.RLock()
        self._done: list[tuple[Row, Outcome]] = []  # outcomes that are given to their calls without the lock
        self._opened = time.monotonic()
        self._limited: set[Call] = set()  # calls whose rows have limits
        self._past_optimal = 0  # of lanes that were closed

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the account, and give outcomes to their calls afterwards: what they call may take other locks."""
        with self._lock:
            yield
            done, self._done = self._done, []
        for row, outcome in done:
            row.call.put(row.index, outcome)

    def new_lane(self) -> Lane:
        """Return a lane for one more vLLM. Its rows wait until ``open``."""
        lane = Lane()
        with self._lock:
            self._routes.lanes.append(lane)
        return lane

    def open(self, lane: Lane, block_size: int, max_num_seqs: int) -> None:
        """Start to give a lane rows, in the order that suits a vLLM with these sizes."""
        with self._lock:
            if not any(one.is_open for one in self._routes.lanes):
                self._opened = time.monotonic()
            lane.queue = PrefixQueue(block_size, max_num_seqs)
            self._routes.open(lane)

    def reopen(self, lane: Lane) -> None:
        """Give a lane rows again, after a restart of its vLLM."""
        with self._lock:
            self._routes.open(lane)

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
        """Return the current counters. Times are sums over the lanes."""
        now = time.monotonic()
        with self._lock:
            stats = replace(self._stats)
            lanes = self._routes.lanes
            stats.busy_seconds += sum(lane.busy() for lane in lanes)
            optimal = self._past_optimal + sum(lane.queue.optimal_tokens for lane in lanes)
            stats.idle_seconds = max(0.0, (now - self._opened) * max(1, len(lanes)) - stats.busy_seconds)
        stats.optimal_tokens = min(optimal, stats.computed_tokens)
        return stats

    def snapshot_of(self, lane: Lane) -> EngineStats:
        """Return one lane's counters: those of the rows that its vLLM answered, and of those that it has now."""
        with self._lock:
            waiting = len(lane.queue) + sum(1 for _ in lane.replay)
            inside = len(lane.in_flight)
            return replace(lane.answered, pending=waiting, in_flight=inside, busy_seconds=lane.busy())

    @property
    def done(self) -> int:
        """Rows with an outcome."""
        return self._stats.done

    def add(self, rows: Sequence[Row]) -> None:
        """Take rows that ``count_expected`` has counted. Rows with a known answer get it at once."""
        with self._locked():
            self._limited |= {row.call for row in rows if any(row.call.limits)}
            new, known = self._duplicates.split_new_and_known(rows)
            self._routes.push(new)
            for row, outcome in known:
                self._finish(row, outcome, duplicate=True)

    def next_row(self, lane: Lane, has_room: Callable[[], bool]) -> Row | None:
        """Take the row to send to a lane's vLLM now. None: there is none.

        Args:
            lane: the lane. If no row waits for it, it takes rows from another one.
            has_room: returns whether vLLM should get one more row.
        """
        with self._lock:
            row = lane.replay.next(len(lane.in_flight))
            was_full, lane.is_full = lane.is_full, row is None and not has_room()
            if lane.is_full and not was_full and lane.leaves_rows:
                self._routes.leave_rows()
            if row is not None or lane.replay.limit or lane.is_full:
                return row
            if not len(lane.queue) and not self._routes.take_half(lane):
                return None
            return lane.queue.pop()

    def sent(self, lane: Lane, rows: Sequence[Row]) -> None:
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
            lane.count_busy(now)

    def answered(self, lane: Lane, request_id: str, outcome: Outcome) -> None:
        """Give the row of a request and its twins their outcome. Does nothing if the row was dropped."""
        with self._locked():
            self._answered(lane, request_id, outcome)

    def _answered(self, lane: Lane, request_id: str, outcome: Outcome) -> None:
        row = lane.in_flight.pop(request_id, None)
        if row is None:
            return
        if row.items and row.first_with_media:  # the queue counted each medium as one token, its placeholder
            lane.queue.optimal_tokens += row.prompt_tokens - row.size
        self._stats.in_flight -= 1
        self._stats.pending += 1
        lane.answered.finish(outcome)
        self._finish_all(row, outcome)

    def requeue_in_flight(self, lane: Lane, what: str, *, still_loading: bool) -> None:
        """Take back the rows that were inside vLLM when it died. The lane's next vLLM gets them.

        If it is known which row vLLM died of, that row gets an error as its outcome instead.

        Args:
            lane: the lane of the vLLM that died.
            what: how vLLM died.
            still_loading: whether some of these rows had not reached vLLM, because their media were being loaded.
        """
        with self._locked():
            rows = list(lane.in_flight.values())
            lane.in_flight.clear()
            self._stats.in_flight -= len(rows)
            self._stats.pending += len(rows)
            lane.count_busy(time.monotonic())
            row = lane.replay.blame(rows, others=lane.dropped or still_loading)
            lane.dropped = False
            self._routes.suspend(lane)
            if row is not None:
                reason = (
                    f"{what} each of the {row.deaths} times that this row was inside it, the last time with no other "
                    "row: change the row, or leave it out"
                )
                self._finish_all(row, Outcome.failed("engine_error", reason, prompt_tokens=row.prompt_tokens))
        self.wake_others(lane)

    def wake_others(self, lane: Lane | None = None) -> None:
        """Let the threads of all other lanes look for rows."""
        for one in list(self._routes.lanes):
            if one is not lane:
                one.wake()

    def unanswered(self) -> list[Row]:
        """Return every row that has no outcome yet."""
        with self._lock:
            computed = [
                row for lane in self._routes.lanes for row in (*lane.in_flight.values(), *lane.replay, *lane.queue)
            ]
            return computed + [twin for row in computed for twin in row.twins or ()]

    def close(self, lane: Lane) -> bool:
        """Give a lane's rows to the others: its vLLM has ended for good. Return False if there is no other lane.

        The rows that were inside it when it died go first wherever they go, few at once.
        """
        with self._lock:
            if self._routes.lanes == [lane] or lane not in self._routes.lanes:
                return False
            inside = [*lane.in_flight.values(), *lane.replay]
            self._stats.in_flight -= len(lane.in_flight)
            self._stats.pending += len(lane.in_flight)
            lane.in_flight.clear()
            lane.count_busy(time.monotonic())
            self._stats.busy_seconds += lane.busy_seconds
            self._past_optimal += lane.queue.optimal_tokens
            waiting = self._routes.close(lane)
            heir = min(self._routes.lanes, key=lambda one: (not one.is_open, len(one.in_flight)))
            heir.replay.add(inside)
            self._routes.push(waiting)
        self.wake_others()
        return True

    def fail_all(self, error: Exception) -> None:
        """Fail every waiting call with ``error``."""
        with self._lock:
            lost = self.unanswered()
            inside = sum(len(lane.in_flight) for lane in self._routes.lanes)
            self.count_abandoned(len(lost) - inside, inside)
            for lane in self._routes.lanes:
                lane.in_flight.clear()
                lane.queue.remove(lambda row: True)
                lane.replay.remove(lambda row: True)
            self._duplicates = Duplicates()
        for row in lost:
            row.twins = None
            row.call.fail(error)

    def drop(self, call: Call) -> None:
        """Remove the rows of ``call``, from vLLM too.

        If other calls wait for the answer of a removed row, one of its twins is computed in its place.
        """
        with self._lock:
            self._limited.discard(call)
            waiting, running = self._remove(call)
            self.count_abandoned(len(waiting), len(running))
        self.wake_others()

    def end_late(self, lane: Lane, last_step: float) -> None:
        """Give the rows whose time is over an error, and take them out of vLLM.

        Args:
            lane: the lane whose rows are looked at. Deadlines are those of all rows.
            last_step: when its vLLM made its last step, in seconds of ``time.monotonic()``. A row is late only if vLLM
                has made a step after the row's time: if vLLM stalls, that is not the fault of the rows inside.
        """
        if not self._limited:
            return
        with self._locked():
            self._limited = {call for call in self._limited if not call.future.done()}
            late_ids = []
            for request_id, row in list(lane.in_flight.items()):
                seconds = row.call.limits.row_seconds
                if seconds is not None and last_step > row.sent_at + seconds:
                    late_ids.append(request_id)
                    why = f"it was inside vLLM for more than {seconds:g} seconds (row_timeout)"
                    self._answered(lane, request_id, Outcome.failed("timeout", why, prompt_tokens=row.prompt_tokens))
            if late_ids:
                lane.dropped = True
                lane.cancel(late_ids)
            for call in list(self._limited):
                late = call.limits.past_deadline()
                if late is None:
                    continue
                self._limited.discard(call)
                waiting, running = self._remove(call)
                self._stats.in_flight -= len(running)
                self._stats.pending += len(running)
                for row in [*waiting, *running]:
                    self._finish(row, late._replace(prompt_tokens=row.prompt_tokens))

    def _remove(self, call: Call) -> tuple[list[Row], list[Row]]:
        """Remove the rows of ``call``. Return those that waited, and those that were inside vLLM."""

        def unwanted(row: Row) -> bool:
            return row.call is call

        waiting: list[Row] = []
        inside: list[Row] = []
        for lane in self._routes.lanes:
            waiting += [*lane.replay.remove(unwanted), *lane.queue.remove(unwanted)]
            running = {request_id: row for request_id, row in lane.in_flight.items() if unwanted(row)}
            inside += running.values()
            if running:
                for request_id in running:
                    del lane.in_flight[request_id]
                lane.dropped = True
                lane.cancel([*running])
        twins = [
            twin for row in self.unanswered() if not unwanted(row) for twin in self._duplicates.prune(row, unwanted)
        ]
        for row in [*waiting, *inside]:
            leader, removed = self._duplicates.drop(row, unwanted)
            twins += removed
            if leader is not None:
                self._routes.push([leader])
        return [*waiting, *twins], inside

    def forget_answers(self) -> None:
        """Forget all answers: later rows are computed, even if an equal row was computed before."""
        with self._lock:
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
        self._stats.pending -= 1
        self._stats.finish(outcome, duplicate=duplicate)
        self._done.append((row, outcome))
