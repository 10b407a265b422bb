"""Estimates of rows per second beside published measurements."""

from __future__ import annotations

import math
from statistics import median

import pytest

from benchmarks.parts.throughput_logs import Prepared, fit, read_measurements
from daft_vllm.model_configs.steps import RATES


@pytest.fixture(scope="module")
def runs() -> list[Prepared]:
    return [Prepared(measured) for measured in read_measurements()]


def test_estimates_hold_on_runs_that_nothing_was_fitted_to(runs: list[Prepared]) -> None:
    held = [run for run in runs if run.measured.is_held]
    recent = [run for run in held if run.measured.version >= (0, 9)]
    assert len(held) > 200
    assert len(recent) > 60
    for some in (held, recent):
        errors = [math.exp(abs(math.log(run.error()))) for run in some]
        assert median(errors) < 1.35
        assert max(errors) < 2.5


def test_measurements_are_read_whole(runs: list[Prepared]) -> None:
    assert len({run.measured.card for run in runs}) > 10
    assert len({run.measured.model for run in runs}) > 20
    assert all(run.measured.source.startswith("https://") for run in runs)
    halves = [{run.measured.group for run in runs if run.measured.is_held == held} for held in (True, False)]
    assert not halves[0] & halves[1]


def test_a_fit_finds_better_rates(runs: list[Prepared]) -> None:
    """On runs of one kind, from the rates of all."""
    pytest.importorskip("scipy")
    some = [run for run in runs if run.measured.model == "qwen3-14b"]
    found = fit(some)
    before, after = (sum(abs(math.log(run.error(rates))) for run in some) for rates in (RATES, found))
    assert after < 0.9 * before
