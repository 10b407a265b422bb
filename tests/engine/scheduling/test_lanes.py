"""Rows of several vLLMs behind one queue: each has rows while there are any, and prefixes stay together."""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daft_vllm.engine.requests.outcome import Outcome
from daft_vllm.engine.requests.prepared import Prepared, pack_tokens
from daft_vllm.engine.scheduling.lanes import Lane
from daft_vllm.engine.scheduling.ledger import Ledger
from daft_vllm.engine.scheduling.row import Call, Row

BLOCK = 4


class Engines:
    """Some vLLMs that answer their oldest rows, and a ledger."""

    def __init__(self, lanes: int, room: int, block_size: int = BLOCK) -> None:
        self.ledger = Ledger()
        self.block_size = block_size
        self.room = room
        self.lanes = [self.ledger.new_lane() for _ in range(lanes)]
        for lane in self.lanes:
            self.ledger.open(lane, block_size, room)
        self.calls: list[Call] = []
        self.sent: dict[int, list[Row]] = {id(lane): [] for lane in self.lanes}
        self._ids = iter(range(10**9))

    def submit(self, prompts: list[list[int]]) -> Call:
        call = Call(len(prompts))
        params = SimpleNamespace(max_tokens=1)
        prepared = [Prepared(pack_tokens(prompt), params, False, b"x") for prompt in prompts]
        self.ledger.count_expected(len(prompts), [])
        self.ledger.add([Row(call, i, one, self.block_size, dedupe=False) for i, one in enumerate(prepared)])
        self.calls.append(call)
        return call

    def fill(self, lane: Lane) -> None:
        rows = []
        while (row := self.ledger.next_row(lane, lambda: len(lane.in_flight) < self.room)) is not None:
            lane.in_flight[str(next(self._ids))] = row
            rows.append(row)
        self.ledger.sent(lane, rows)
        self.sent[id(lane)] += rows

    def answer(self, lane: Lane, rows: int) -> None:
        for request_id in list(lane.in_flight)[:rows]:
            self.ledger.answered(lane, request_id, Outcome("yes"))
        self.fill(lane)

    def run(self, speeds: list[int]) -> int:
        """Answer everything: each lane so many rows a round. Return the rounds."""
        rounds = 0
        for lane in self.lanes:
            self.fill(lane)
        while any(lane.in_flight for lane in self.lanes):
            rounds += 1
            for lane, speed in zip(self.lanes, speeds, strict=True):
                self.answer(lane, speed)
            self.ledger.snapshot().check()
        return rounds


def prompts_of(groups: int, rows: int, rng: random.Random) -> list[list[int]]:
    """Return rows of groups that share four blocks."""
    prefixes = [[rng.randrange(1000) for _ in range(4 * BLOCK)] for _ in range(groups)]
    made = [[*prefixes[i % groups], *(rng.randrange(1000) for _ in range(BLOCK))] for i in range(rows)]
    rng.shuffle(made)
    return made


@pytest.mark.parametrize("lanes", [1, 2, 3, 8])
def test_no_lane_waits_while_rows_do(lanes: int) -> None:
    engines = Engines(lanes, room=8)
    engines.submit(prompts_of(16, 1600, random.Random(1)))
    rounds = engines.run([4] * lanes)
    assert rounds <= 1600 / 4 / lanes + 3
    assert all(call.future.done() for call in engines.calls)


def test_a_slow_lane_leaves_its_rows_to_the_others() -> None:
    engines = Engines(3, room=8)
    engines.submit(prompts_of(16, 1600, random.Random(1)))
    assert engines.run([8, 8, 1]) <= 1600 / 17 + 10


def test_a_prefix_is_in_one_cache_unless_its_rows_are_divided() -> None:
    engines = Engines(4, room=8)
    rng = random.Random(2)
    made = prompts_of(64, 6400, rng)
    for start in range(0, len(made), 64):
        engines.submit(made[start : start + 64])
    engines.run([4] * 4)
    caches = Counter(
        bytes(prefix) for rows in engines.sent.values() for prefix in {row.key[: 16 * BLOCK] for row in rows}
    )
    assert len(caches) == 64
    assert sum(caches.values()) <= 64 + 12, "few prefixes were computed twice"
    loads = [len(rows) for rows in engines.sent.values()]
    assert max(loads) <= 1.02 * min(loads)


def test_rows_are_divided_between_prefixes() -> None:
    engines = Engines(2, room=1)
    rng = random.Random(6)
    made = prompts_of(5, 100, rng)
    engines.submit(made[:95])
    engines.submit(made[95:])

    def prefixes(lane: Lane) -> Counter[bytes]:
        return Counter(row.key[: 16 * BLOCK] for row in lane.queue)

    first, second = map(prefixes, engines.lanes)
    assert not first.keys() & second.keys(), "no prefix is in two lanes"
    assert sorted(map(len, (first, second))) == [2, 3]
    more = [row + [rng.randrange(1000)] * BLOCK for row in made]
    engines.submit(more)
    first, second = map(prefixes, engines.lanes)
    assert not first.keys() & second.keys(), "later rows go to the lane of their prefix"
    assert (first + second).total() == 200


def test_one_prefix_is_divided_in_the_middle() -> None:
    engines = Engines(2, room=1)
    engines.submit(prompts_of(1, 101, random.Random(7)))
    assert [len(lane.queue) for lane in engines.lanes] == [50, 51]


def test_equal_prompts_are_divided() -> None:
    for block_size in (1, BLOCK):
        engines = Engines(2, room=1, block_size=block_size)
        engines.submit([[1] * 8] * 10)
        assert [len(lane.queue) for lane in engines.lanes] == [5, 5]


def test_few_rows_are_divided_over_idle_lanes() -> None:
    engines = Engines(4, room=64)
    engines.submit(prompts_of(2, 16, random.Random(3)))
    for lane in engines.lanes:
        engines.fill(lane)
    assert [len(lane.in_flight) for lane in engines.lanes] == [4, 4, 4, 4]
    engines.submit(prompts_of(1, 1, random.Random(4)))


def test_rows_of_a_dead_vllm_go_on_elsewhere() -> None:
    engines = Engines(2, room=4)
    call = engines.submit(prompts_of(4, 40, random.Random(5)))
    first, second = engines.lanes
    engines.fill(first)
    engines.fill(second)
    woken: list[int] = []
    second.wake = lambda: woken.append(1)
    engines.ledger.requeue_in_flight(first, "vLLM died", still_loading=False)
    assert woken
    while second.in_flight:
        engines.answer(second, 4)
    assert call.missing == 4, "those that were inside it wait for it: one of them may have killed it"
    assert engines.ledger.close(first), "it can't be started again"
    while True:
        engines.fill(second)
        if not second.in_flight:
            break
        assert len(second.in_flight) == 1, "each of them goes alone"
        engines.answer(second, 1)
    assert call.future.done()
    assert not engines.ledger.close(second), "nobody is left"
    engines.ledger.snapshot().check()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("sadrcf"), st.integers(0, 3), st.integers(1, 12)), max_size=40))
def test_no_row_is_lost_whatever_happens(events: list[tuple[str, int, int]]) -> None:
    engines = Engines(4, room=3)
    rng = random.Random(0)
    alive = list(engines.lanes)
    dropped: list[Call] = []
    for kind, which, number in events:
        lane = alive[which % len(alive)]
        if kind == "s":
            engines.submit(prompts_of(3, number, rng))
        elif kind == "f":
            engines.fill(lane)
        elif kind == "a" and lane.is_open:
            engines.answer(lane, number)
        elif kind == "d":
            engines.ledger.requeue_in_flight(lane, "died", still_loading=True)
        elif kind == "r":
            engines.ledger.reopen(lane)
        elif kind == "c" and len(alive) > 1 and number < 3:
            assert engines.ledger.close(lane)
            alive.remove(lane)
        elif engines.calls and number > 10:
            dropped.append(engines.calls.pop(rng.randrange(len(engines.calls))))
            engines.ledger.drop(dropped[-1])
        engines.ledger.snapshot().check()
    for lane in alive:
        engines.ledger.reopen(lane)
    while any(not call.future.done() for call in engines.calls):
        for lane in alive:
            engines.fill(lane)
        assert any(lane.in_flight for lane in alive), "rows wait, and nobody takes them"
        for lane in alive:
            engines.answer(lane, 3)
    stats = engines.ledger.snapshot()
    assert stats.pending + stats.in_flight == 0
    assert all(len(call.future.result()) == len(call.outcomes) for call in engines.calls)
