"""Rows whose time is over."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from daft_vllm.engine.requests.limits import Limits
from daft_vllm.engine.requests.outcome import Outcome
from daft_vllm.engine.requests.prepared import Prepared
from daft_vllm.engine.scheduling.ledger import Ledger
from daft_vllm.engine.scheduling.row import Call, Row


def rows_of(call: Call, texts: str) -> list[Row]:
    """Return a row for each letter. Equal letters are equal rows."""
    prepared = [Prepared(letter.encode() * 16, SimpleNamespace(max_tokens=1), False, b"x") for letter in texts]
    return [Row(call, index, one, 16, dedupe=True) for index, one in enumerate(prepared)]


class Opened:
    """An account with one lane, some calls, and some of their rows inside vLLM."""

    def __init__(self, *calls: tuple[Call, str], sent: int) -> None:
        self.ledger = Ledger()
        self.lane = self.ledger.new_lane()
        self.cancelled: list[str] = []
        self.lane.cancel = self.cancelled.extend
        self.ledger.open(self.lane, 16, 8)
        for call, texts in calls:
            self.ledger.count_expected(len(texts), [])
            self.ledger.add(rows_of(call, texts))
        self.inside = self.send(sent)

    def send(self, most: int = 1000) -> list[Row]:
        rows: list[Row] = []
        while len(rows) < most and (row := self.ledger.next_row(self.lane, lambda: True)) is not None:
            self.lane.in_flight[f"{len(self.lane.in_flight)}"] = row
            rows.append(row)
        self.ledger.sent(self.lane, rows)
        return rows

    def late(self, last_step: float) -> list[str]:
        """Return the requests that are taken out of vLLM."""
        self.cancelled.clear()
        self.ledger.end_late(self.lane, last_step)
        return list(self.cancelled)


def codes(call: Call) -> list[Any]:
    return [one and (one.text or (one.error and one.error.code)) for one in call.outcomes]


def test_a_row_is_late_only_if_vllm_made_a_step_after_its_time() -> None:
    call = Call(4, limits=Limits(row_seconds=10))
    opened = Opened((call, "abab"), sent=2)
    first, second = opened.inside
    assert opened.late(first.sent_at + 9.9) == []
    second.sent_at += 5
    assert opened.late(first.sent_at + 10.1) == ["0"], "vLLM made a step while the first row was late"
    assert codes(call) == ["timeout", None, "timeout", None], "an equal row ends as the row that was computed for it"
    opened.ledger.answered(opened.lane, "1", Outcome("yes"))
    assert codes(call) == ["timeout", "yes", "timeout", "yes"]
    opened.ledger.snapshot().check()
    assert call.future.done()


def test_after_the_deadline_all_rows_end_and_those_of_others_go_on() -> None:
    late, other = Call(4, limits=Limits(deadline=time.time() + 0.05)), Call(2)
    opened = Opened((late, "abca"), (other, "ad"), sent=2)
    assert opened.late(time.monotonic()) == []
    time.sleep(0.06)
    assert opened.late(time.monotonic()) == ["0", "1"]
    assert codes(late) == ["deadline"] * 4
    assert late.future.done()
    assert other.outcomes == [None, None]
    opened.ledger.snapshot().check()
    again = opened.send()
    assert [row.call for row in again] == [other, other], "its row that waited for an equal one is computed itself"
    for number in range(2):
        opened.ledger.answered(opened.lane, f"{number}", Outcome("yes"))
    assert codes(other) == ["yes", "yes"]
    opened.ledger.snapshot().check()


def test_rows_with_other_limits_are_not_the_same_row() -> None:
    short, long = Call(1, limits=Limits(row_seconds=1)), Call(1)
    assert len(Opened((short, "a"), (long, "a"), sent=2).inside) == 2
