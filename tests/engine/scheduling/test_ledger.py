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


def opened(*calls: tuple[Call, str], sent: int) -> tuple[Ledger, list[Row]]:
    ledger = Ledger()
    ledger.open(16, 8)
    for call, texts in calls:
        ledger.count_expected(len(texts), [])
        ledger.add(rows_of(call, texts))
    inside: list[Row] = []
    while len(inside) < sent and (row := ledger.next_row(lambda: True)) is not None:
        ledger.in_flight[f"{len(inside)}"] = row
        inside.append(row)
    ledger.sent(inside)
    return ledger, inside


def codes(call: Call) -> list[Any]:
    return [one and (one.text or (one.error and one.error.code)) for one in call.outcomes]


def test_a_row_is_late_only_if_vllm_made_a_step_after_its_time() -> None:
    call = Call(4, limits=Limits(row_seconds=10))
    ledger, inside = opened((call, "abab"), sent=2)
    assert ledger.end_late(inside[0].sent_at + 9.9) == []
    inside[1].sent_at += 5
    assert ledger.end_late(inside[0].sent_at + 10.1) == ["0"], "vLLM made a step while the first row was late"
    assert codes(call) == ["timeout", None, "timeout", None], "an equal row ends as the row that was computed for it"
    ledger.answered("1", Outcome("yes"))
    assert codes(call) == ["timeout", "yes", "timeout", "yes"]
    ledger.snapshot().check()
    assert call.future.done()


def test_after_the_deadline_all_rows_end_and_those_of_others_go_on() -> None:
    late, other = Call(4, limits=Limits(deadline=time.time() + 0.05)), Call(2)
    ledger, _ = opened((late, "abca"), (other, "ad"), sent=2)
    assert ledger.end_late(time.monotonic()) == []
    time.sleep(0.06)
    running = ledger.end_late(time.monotonic())
    assert running == ["0", "1"]
    assert codes(late) == ["deadline"] * 4
    assert late.future.done()
    assert other.outcomes == [None, None]
    ledger.snapshot().check()
    again = []
    while (row := ledger.next_row(lambda: True)) is not None:
        again.append(row)
        ledger.in_flight[f"new {len(again)}"] = row
    ledger.sent(again)
    assert {row.call for row in again} == {other}, "its row that waited for an equal one is computed itself"
    for number in range(2):
        ledger.answered(f"new {number + 1}", Outcome("yes"))
    assert codes(other) == ["yes", "yes"]
    ledger.snapshot().check()


def test_rows_with_other_limits_are_not_the_same_row() -> None:
    short, long = Call(1, limits=Limits(row_seconds=1)), Call(1)
    _, inside = opened((short, "a"), (long, "a"), sent=2)
    assert len(inside) == 2
