"""Rows that were inside vLLM when it died: how the one that kills it is found."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from daft_vllm.engine.scheduling.replay import Replay, RestartBudget


class Simulated:
    """An engine that dies in a step with a deadly row inside. Otherwise a step answers the oldest row."""

    def __init__(self, rows: int, deadly: set[int], at_once: int) -> None:
        self.waiting = [self._row(number, number in deadly) for number in range(rows)]
        self.at_once = at_once
        self.inside: list[Any] = []
        self.answered: list[int] = []
        self.blamed: list[int] = []
        self.deaths = 0
        self.replay = Replay()

    def _row(self, number: int, deadly: bool) -> Any:
        return SimpleNamespace(number=number, deadly=deadly, deaths=0)

    def run(self) -> None:
        while self._admit() or self.inside:
            # A step begins when as many rows as allowed are inside. One deadly row among them is enough.
            if any(row.deadly for row in self.inside):
                self.deaths += 1
                inside, self.inside = self.inside, []
                if (row := self.replay.blame(inside)) is not None:
                    self.blamed.append(row.number)
            else:
                self.answered.append(self.inside.pop(0).number)

    def _admit(self) -> bool:
        before = len(self.inside)
        while True:
            row = self.replay.next(len(self.inside))
            if row is None and not self.replay.limit and self.waiting and len(self.inside) < self.at_once:
                row = self.waiting.pop(0)
            if row is None:
                return len(self.inside) > before
            self.inside.append(row)


@pytest.mark.parametrize(("rows", "at_once"), [(1, 1), (3, 8), (1000, 1), (1000, 32), (2000, 512)])
def test_the_rows_that_kill_it_are_found_and_no_others(rows: int, at_once: int) -> None:
    rng = random.Random(f"{rows}/{at_once}")
    for number in {0, 1, min(3, rows)}:
        deadly = set(rng.sample(range(rows), number))
        engine = Simulated(rows, deadly, at_once)
        engine.run()
        assert set(engine.blamed) == deadly
        assert sorted(engine.answered + engine.blamed) == list(range(rows))
        assert engine.deaths <= 3 * number


def test_a_death_that_is_no_rows_fault_costs_none() -> None:
    replay = Replay()
    rows: list[Any] = [SimpleNamespace(deaths=0) for _ in range(100)]
    assert replay.blame(rows) is None
    inside = []
    while (row := replay.next(len(inside))) is not None:
        inside.append(row)
    assert inside == rows[:10]
    assert replay.blame(inside) is None  # killed once more, from outside
    assert replay.limit == 1
    replayed = []
    while (row := replay.next(0)) is not None:
        replayed.append(row)
    assert replayed == rows
    assert replay.limit == 0
    # A row that is alone in vLLM gets a second chance too.
    only: Any = SimpleNamespace(deaths=0)
    assert replay.blame([only]) is None
    assert replay.next(0) is only
    assert replay.next(1) is None
    assert replay.blame([only], others=True) is None  # vLLM had another row too, but that was dropped
    assert replay.next(0) is only
    assert replay.blame([only]) is only


def test_rows_that_nobody_waits_for_are_not_replayed() -> None:
    replay = Replay()
    rows: list[Any] = [SimpleNamespace(deaths=0) for _ in range(9)]
    replay.blame(rows)
    assert replay.remove(lambda row: row is not rows[4]) == rows[:4] + rows[5:]
    assert list(replay) == [rows[4]]
    assert replay.next(0) is rows[4]
    assert replay.next(0) is None


def test_restarts_are_limited_unless_rows_are_answered_between_them() -> None:
    budget = RestartBudget(3, rows=100)
    assert [budget.spend(done) for done in (10, 10, 50)] == [True] * 3
    assert not budget.spend(109)
    budget = RestartBudget(3, rows=100)
    assert all(budget.spend(done) for done in (10, 10, 50, 150, 150, 150))
    assert not budget.spend(249)
    assert not RestartBudget(0, rows=100).spend(0)
    assert not RestartBudget(0, rows=100).spend(1000)
    budget = RestartBudget(1, rows=100)
    assert budget.spend(0)
    budget.allow(2)
    assert budget.spend(0), "one of two is used"
    budget.allow(0)
    assert not budget.spend(0)
