"""Runs a trace through a policy and its replicas."""

from __future__ import annotations

import heapq
import time
from collections import Counter, defaultdict
from dataclasses import dataclass

from benchmarks.cluster.policies.base import Policy
from benchmarks.cluster.replica import Replica
from benchmarks.cluster.traces import Row, Trace


@dataclass(frozen=True)
class Run:
    """What happened.

    Args:
        replicas: the engines, after the last row.
        seconds: until the last row was answered.
        ended: when each replica answered its last row.
        places: the replica of each row, by the row's index.
        planning: seconds of the processor in the policy.
        visible: rows that the policy may have at once, those that are not answered.
    """

    replicas: tuple[Replica, ...]
    seconds: float
    ended: tuple[float, ...]
    places: tuple[int, ...]
    planning: float
    visible: int


def run(trace: Trace, policy: Policy, *, batch: int = 2048, batches: int = 64) -> Run:
    """Simulate a run. A replica gets rows between two steps.

    Args:
        trace: the table.
        policy: gives rows to replicas.
        batch: rows of a batch, unless the policy has another number.
        batches: how many batches are open at once. One is closed when all its rows are answered. Policies with another
            size of batches have no such limit.
    """
    return _Run(trace, policy, batch, batches).run()


class _Run:
    def __init__(self, trace: Trace, policy: Policy, batch: int, batches: int) -> None:
        setting = policy.setting
        setting.size.check(max(row.prompt + row.output for row in trace.rows))
        self._policy = policy
        self._seconds = setting.seconds
        self._replicas = [Replica(setting.size) for _ in range(setting.replicas)]
        if policy.batch is not None:
            batch, batches = policy.batch or len(trace.rows), len(trace.rows)
        self._size, self._batches = batch, batches
        self._rows = trace.rows
        self._added = 0
        self._left: Counter[int] = Counter()  # unanswered rows of each open batch
        self._busy: list[tuple[float, int, list[Row]]] = []  # the ends of steps
        self._idle = set(range(setting.replicas))
        self._places = [-1] * len(trace.rows)
        self._ended = [0.0] * setting.replicas
        self._planning = 0.0

    def run(self) -> Run:
        self._stream(0.0)
        now = 0.0
        while self._busy:
            now, place, rows = heapq.heappop(self._busy)
            self._idle.add(place)
            if rows:
                self._ended[place] = now
                began = time.thread_time()
                self._policy.answered(place, rows)
                self._planning += time.thread_time() - began
                self._count(rows, now)
            self._start(place, now)
            self._wake(now)
        if -1 in self._places:
            raise RuntimeError(f"{self._places.count(-1)} rows were never sent")
        visible = min(len(self._rows), self._size * self._batches)
        return Run(tuple(self._replicas), now, tuple(self._ended), tuple(self._places), self._planning, visible)

    def _stream(self, now: float) -> None:
        """Add batches as long as there may be more."""
        while self._added < len(self._rows) and len(self._left) < self._batches:
            rows = self._rows[self._added : self._added + self._size]
            self._left[self._added // self._size] = len(rows)
            self._added += len(rows)
            began = time.thread_time()
            self._policy.add(rows)
            if self._added == len(self._rows):
                self._policy.finish()
            self._planning += time.thread_time() - began
            self._wake(now)

    def _count(self, rows: list[Row], now: float) -> None:
        closed = False
        for row in rows:
            batch = row.index // self._size
            self._left[batch] -= 1
            if not self._left[batch]:
                del self._left[batch]
                closed = True
        if closed:
            self._stream(now)

    def _wake(self, now: float) -> None:
        woken = self._policy.woken
        while woken:
            place = woken.pop()
            if place in self._idle:
                self._start(place, now)

    def _start(self, place: int, now: float) -> None:
        """Give an idle replica rows, and let it make a step."""
        replica = self._replicas[place]
        began = time.thread_time()
        while (row := self._policy.next(place, replica)) is not None:
            if self._places[row.index] != -1:
                raise RuntimeError(f"row {row.index} was sent twice")
            self._places[row.index] = place
            replica.waiting.append(row)
        self._planning += time.thread_time() - began
        if place in self._idle and replica.in_flight:
            self._idle.discard(place)
            load, rows = replica.step()
            heapq.heappush(self._busy, (now + self._seconds.of(load), place, rows))


def spread(trace: Trace, run: Run) -> float:
    """Return on how many replicas each prefix is, on average; 1.0 if rows share nothing."""
    places: dict[tuple[int, ...], set[int]] = defaultdict(set)
    for row in trace.rows:
        if row.shared:
            places[row.shared].add(run.places[row.index])
    return sum(map(len, places.values())) / len(places) if places else 1.0
