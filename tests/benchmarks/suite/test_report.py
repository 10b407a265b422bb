"""The report, on records made up for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.suite.records import Record, ResultsFile, add_answers
from benchmarks.suite.report import markdown, write_report
from benchmarks.suite.summary import ORACLES, ratio, summarise


def record(arm: str, rows: int, seconds: float | None, round_number: int = 0, **more: object) -> Record:
    return Record(arm, "blog", round_number, rows, seconds=seconds, **more)  # type: ignore[arg-type]


def test_marginal_rate_is_the_median_of_the_rounds_differences() -> None:
    records = []
    for round_number, (small, large) in enumerate([(2.0, 12.0), (2.0, 7.0), (2.0, 22.0)]):
        records += [record("ours", 10, small, round_number), record("ours", 60, large, round_number)]
    (summary,) = summarise(records)
    assert summary.marginal == pytest.approx((5.0, 2.5, 10.0))
    assert summary.plain == pytest.approx((60 / 12, 60 / 22, 60 / 7))
    assert summary.rate == pytest.approx(5.0)
    assert (summary.rows, summary.rounds) == (60, 3)


def test_a_round_without_both_sizes_has_no_marginal_rate() -> None:
    (summary,) = summarise([record("ours", 10, 1.0, 0), record("ours", 60, 3.0, 1), record("ours", 60, None, 0)])
    assert summary.marginal is None
    assert summary.rate == pytest.approx(20.0)


def test_a_large_run_faster_than_the_small_one_has_no_marginal_rate() -> None:
    (summary,) = summarise([record("ours", 10, 3.0), record("ours", 60, 2.0)])
    assert summary.marginal is None


def test_ratios_are_to_the_faster_oracle_and_to_each_peer() -> None:
    records = []
    for arm, seconds in {"oracle-inproc": 5.0, "oracle-proc": 4.0, "naive-64": 10.0, "ours": 5.0}.items():
        records += [record(arm, 10, 1.0), record(arm, 50, 1.0 + seconds)]
    summaries = summarise(records)
    ours = next(s for s in summaries if s.arm == "ours")
    assert ratio(ours, summaries, ORACLES) == pytest.approx(0.8)
    assert ratio(ours, summaries, ["naive-64"]) == pytest.approx(2.0)
    assert ratio(ours, summaries, ["ray-data"]) is None
    table = markdown(summaries)
    assert "/ naive-64" in table
    assert "/ ray-data" not in table
    assert "| 0.80 | 2.00 |" in next(line for line in table.splitlines() if line.startswith("| ours |"))


def test_computed_over_optimal_is_of_the_large_size() -> None:
    records = [
        record("ours", 10, 1.0, computed_tokens=300, optimal_tokens=100),
        record("ours", 60, 2.0, computed_tokens=150, optimal_tokens=100),
    ]
    assert summarise(records)[0].computed == pytest.approx(1.5)


def test_an_arm_without_figures_says_why() -> None:
    records = [record("ours", 10, 1.0), record("ray-data", 10, None, why_not="no GPU")]
    summaries = summarise(records)
    assert summaries[1].rate is None
    assert "- ray-data: no GPU" in markdown(summaries)


def test_differing_answers_are_counted_against_the_oracle(tmp_path: Path) -> None:
    results = ResultsFile(tmp_path / "results.json")
    for arm, digests in {"oracle-inproc": ["a", "b", "c"], "ours": ["a", "x", None]}.items():
        one = record(arm, 3, 1.0)
        results.add(one)
        add_answers(tmp_path, one.key, list(digests))
    oracle, ours = summarise(results.records, tmp_path)
    assert oracle.differing == (0, 3)
    assert ours.differing == (2, 3)
    assert "2 of 3" in write_report(tmp_path)
    assert (tmp_path / "report.md").is_file()


def test_nothing_recorded_is_a_report_too(tmp_path: Path) -> None:
    assert "No records" in write_report(tmp_path)


def test_records_come_back_from_the_file(tmp_path: Path) -> None:
    results = ResultsFile(tmp_path / "results.json")
    results.add(record("ours", 3, None, why_not="it broke"))
    results.add(record("ours", 3, 1.5, engine_args={"block_size": 32}))
    again = ResultsFile(tmp_path / "results.json")
    assert again.records == [record("ours", 3, 1.5, engine_args={"block_size": 32})]
