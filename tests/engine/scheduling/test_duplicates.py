"""Identical rows: which one is computed, which ones get its answer, and what happens when a caller leaves."""

from __future__ import annotations

import pytest

from daft_vllm.engine.requests.outcome import Outcome
from daft_vllm.engine.scheduling.duplicates import Duplicates
from daft_vllm.engine.scheduling.row import Call
from tests.engine.scheduling.test_queue import make_row

DONE = Outcome(text="x", finish_reason="stop", prompt_tokens=2)


def test_the_first_is_computed_and_the_others_wait_for_it() -> None:
    duplicates = Duplicates()
    a, b, c, other = make_row([1]), make_row([1]), make_row([1]), make_row([2])
    assert duplicates.split_new_and_known([a, b, other]) == ([a, other], [])
    assert duplicates.split_new_and_known([c]) == ([], [])
    assert duplicates.finish(a, DONE) == [b, c]
    late = make_row([1])
    assert duplicates.split_new_and_known([late]) == ([], [(late, DONE)])
    duplicates.forget()
    assert duplicates.split_new_and_known([late]) == ([late], [])


def test_failures_are_not_remembered() -> None:
    duplicates = Duplicates()
    row = make_row([1])
    duplicates.split_new_and_known([row])
    duplicates.finish(row, Outcome.failed("engine_error", "once"))
    again = make_row([1])
    assert duplicates.split_new_and_known([again]) == ([again], [])


def test_memory_is_bounded() -> None:
    duplicates = Duplicates(memory_bytes=2_000)  # two halves, each full with the third answer of 401 bytes
    rows = [make_row([i]) for i in range(10)]
    duplicates.split_new_and_known(rows)
    for row in rows:
        duplicates.finish(row, DONE)
    _, known = duplicates.split_new_and_known([make_row([i]) for i in range(10)])
    assert [row.token_ids for row, _ in known] == [[6], [7], [8], [9]]


@pytest.mark.parametrize("wanted", [True, False])
def test_a_caller_that_leaves_hands_its_row_to_the_next(wanted: bool) -> None:
    mine, other = Call(1), Call(1)
    leader, twin, third = make_row([1], call=mine), make_row([1], call=mine), make_row([1], call=other)
    duplicates = Duplicates()
    duplicates.split_new_and_known([leader, twin, third] if wanted else [leader, twin])
    heir, gone = duplicates.drop(leader, lambda row: row.call is mine)
    assert gone == [twin]
    assert heir is (third if wanted else None)
    if wanted:
        follower = make_row([1])
        assert duplicates.split_new_and_known([follower]) == ([], [])
        assert duplicates.finish(third, DONE) == [follower]


def test_twins_of_a_caller_that_left_are_pruned() -> None:
    mine, other = Call(1), Call(1)
    leader, twin = make_row([1], call=other), make_row([1], call=mine)
    duplicates = Duplicates()
    duplicates.split_new_and_known([leader, twin])
    assert duplicates.prune(leader, lambda row: row.call is mine) == [twin]
    assert duplicates.finish(leader, DONE) == []
