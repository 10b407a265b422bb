"""The rows of each vLLM, and which vLLM a row waits for."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush, heapreplace

from daft_vllm.engine.requests.prepared import TOKEN_BYTES
from daft_vllm.engine.requests.stats import EngineStats
from daft_vllm.engine.scheduling.prefix import shared_blocks
from daft_vllm.engine.scheduling.queue import PrefixQueue
from daft_vllm.engine.scheduling.replay import Replay
from daft_vllm.engine.scheduling.row import Row

_SLACK = 0.125
"""By how many of a lane's rows the place where they are divided may be off the middle, so that prefixes stay whole."""


class Lane:
    """The rows of one vLLM: those that wait for it, those inside it, and those that it gets again after a death.

    Attributes:
        queue: rows that wait for it.
        in_flight: rows inside it by the ids of their requests, in the order in which they were sent.
        replay: rows that were inside it when it died.
        dropped: whether rows inside this vLLM were dropped: it may still run them.
        is_open: whether its vLLM runs and takes rows.
        is_full: whether its vLLM had no room when it looked for rows the last time.
        answered: counts the rows that its vLLM answered, and their tokens.
        busy_seconds: time with rows inside, without the time since ``busy_since``.
        wake: lets its thread look for rows. Callable from any thread.
        cancel: lets its thread take requests out of vLLM. Callable from any thread.
    """

    def __init__(self) -> None:
        self.queue = PrefixQueue(1, 1)  # until the model is loaded
        self.in_flight: dict[str, Row] = {}
        self.replay = Replay()
        self.dropped = False
        self.is_open = self.is_full = False
        self.answered = EngineStats()
        self.busy_seconds = 0.0
        self.busy_since: float | None = None
        self.wake: Callable[[], None] = lambda: None
        self.cancel: Callable[[Sequence[str]], None] = lambda ids: None

    @property
    def leaves_rows(self) -> bool:
        """Whether rows wait for it that it doesn't take itself now."""
        return len(self.queue) > 0 and (self.is_full or not self.is_open or self.replay.limit > 0)

    @property
    def is_idle(self) -> bool:
        """Whether it has no row at all."""
        return not (self.in_flight or len(self.queue) or self.replay.limit)

    def count_busy(self, now: float) -> None:
        """Count the time in which vLLM has rows."""
        if self.busy_since is None and self.in_flight:
            self.busy_since = now
        elif self.busy_since is not None and not self.in_flight:
            self.busy_seconds += now - self.busy_since
            self.busy_since = None

    def busy(self) -> float:
        """Return how long vLLM has had rows, in seconds."""
        return self.busy_seconds + (time.monotonic() - self.busy_since if self.busy_since is not None else 0.0)


class Routes:
    """Gives each lane parts of the order of the keys, so that rows that share a prefix wait for the same vLLM.

    At first one lane has it all. A lane without waiting rows takes half of those of the lane with the most: the half
    that this lane would reach last, and with it that part of the order. The cut is near the middle, between prefixes
    if it can be. So a prefix is in a second cache only if its rows are divided, and no vLLM waits while rows do.

    Not thread-safe.
    """

    def __init__(self) -> None:
        self.lanes: list[Lane] = []
        self._in_vain = False  # a lane has looked for rows of others, and none have been left since
        self._bounds: list[bytes] = []  # ascending: the lane at place i has the keys from bound i - 1 to bound i
        self._owners: list[Lane] = []

    def open(self, lane: Lane) -> None:
        """Give a lane rows from now on: its vLLM runs."""
        lane.is_open = True
        if not self._owners:
            self._owners = [lane]
        self.fill_idle()

    def suspend(self, lane: Lane) -> None:
        """Its vLLM has died, and is started again. Rows that share prefixes with its rows still wait for it.

        Others take them when they have no rows of their own.
        """
        lane.is_open = False
        self.fill_idle()

    def close(self, lane: Lane) -> list[Row]:
        """Give a lane no rows any more: there are others. Return those that waited for it, to be pushed again."""
        lane.is_open = False
        self.lanes.remove(lane)
        rows = lane.queue.remove(lambda row: True)
        self._in_vain = False
        heir = min(self.lanes, key=lambda one: not one.is_open)
        self._set_owners([heir if owner is lane else owner for owner in self._owners])
        return rows

    def push(self, rows: Sequence[Row]) -> None:
        """Let rows wait, each in its lane."""
        if len(self._owners) <= 1:
            (self._owners or self.lanes)[0].queue.push(rows)
        else:
            by_lane: dict[int, list[Row]] = {}
            for row in rows:
                by_lane.setdefault(id(self._owner_of(row.key)), []).append(row)
            for lane in self.lanes:
                lane.queue.push(by_lane.get(id(lane), ()))
        self.fill_idle()

    def fill_idle(self) -> None:
        """Divide the waiting rows, so that no open lane is without a row while another has some that wait."""
        self._in_vain = False
        if len(self.lanes) == 1:
            return
        idle = [(i, lane) for i, lane in enumerate(self.lanes) if lane.is_open and lane.is_idle]
        if not idle:
            return
        others = [(-len(one.queue), i, one) for i, one in enumerate(self.lanes) if len(one.queue)]
        heapify(others)
        for place, lane in idle:
            while others and not (len(others[0][2].queue) > 1 or others[0][2].leaves_rows):
                heappop(others)
            if not others:
                return
            i, other = others[0][1:]
            self._take_half(lane, other)
            heapreplace(others, (-len(other.queue), i, other))
            heappush(others, (-len(lane.queue), place, lane))

    def leave_rows(self) -> None:
        """Wake the lanes without any row that have looked for some in vain: now a lane leaves some."""
        if self._in_vain:
            self._in_vain = False
            for lane in self.lanes:
                if lane.is_idle:
                    lane.wake()

    def take_half(self, lane: Lane) -> bool:
        """Give a lane half of the rows of the lane with the most that leaves some. Return whether there are any."""
        if self._in_vain:  # a hundred lanes that look at a hundred others at each of their steps take too long
            return False
        others = [one for one in self.lanes if one.leaves_rows]
        self._in_vain = not others
        if others:
            self._take_half(lane, max(others, key=lambda one: len(one.queue)))
        return not self._in_vain

    def _take_half(self, lane: Lane, other: Lane) -> None:
        keys = sorted(row.key for row in other.queue)
        bound = _cut(keys, other.queue.block_size) if len(keys) > 1 else keys[0] + b"\0"
        rows = other.queue.remove(lambda row: row.key < bound)
        self._give(other, lane, bound)
        lane.queue.push(rows)
        self._in_vain = False

    def _owner_of(self, key: bytes) -> Lane:
        return self._owners[bisect_right(self._bounds, key)]

    def _give(self, before: Lane, after: Lane, bound: bytes) -> None:
        """Give the keys of a lane that are below a bound to another lane."""
        place = bisect_right(self._bounds, bound)
        if bound not in self._bounds[place - 1 : place]:
            self._bounds.insert(place, bound)
            self._owners.insert(place, self._owners[place])
            place += 1
        self._set_owners([after if one is before and i < place else one for i, one in enumerate(self._owners)])

    def _set_owners(self, owners: Iterable[Lane]) -> None:
        """Set the owner of each part, and join parts that are next to each other and have the same."""
        bounds: list[bytes] = []
        joined: list[Lane] = []
        for owner, bound in zip(owners, [*self._bounds, b""], strict=True):
            if joined and joined[-1] is owner:
                bounds[-1] = bound
            else:
                bounds.append(bound)
                joined.append(owner)
        self._bounds, self._owners = bounds[:-1], joined


def _cut(keys: Sequence[bytes], block_size: int) -> bytes:
    """Return a bound near the middle of sorted keys, where neighbours share the fewest blocks.

    It ends with the first block in which these neighbours differ, so that later rows with that block are above it too.
    """
    middle = (len(keys) + 1) // 2
    slack = int(len(keys) * _SLACK)
    best, fewest, shared = middle, None, 0
    for distance in range(slack + 1):
        for place in (middle - distance, middle + distance):
            shared = shared_blocks(keys[place - 1], keys[place], block_size, shared)
            if fewest is None or shared < fewest:
                best, fewest = place, shared
        if not fewest:
            break
    bound = keys[best][: ((fewest or 0) + 1) * block_size * TOKEN_BYTES]
    return bound if bound > keys[best - 1] else keys[best]
