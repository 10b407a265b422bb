"""The runner, with a worker that needs no engine."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.suite.arms.base import in_row_order
from benchmarks.suite.memory import high_water_mb
from benchmarks.suite.records import RunKey
from benchmarks.suite.runner import Runner
from benchmarks.suite.suites import suite

ROWS = dict.fromkeys(("tiny", "skewed", "nosharing", "pressure"), (4, 8))


def runner(out: Path, behaviour: dict[str, str], stall_seconds: float = 30.0) -> Runner:
    out.mkdir(exist_ok=True)
    (out / "behaviour.json").write_text(json.dumps(behaviour), encoding="utf-8")
    command = [sys.executable, "-m", "tests.benchmarks.suite.fake_worker"]
    chosen = suite("cpu").with_rows(ROWS)
    return Runner(chosen, out, command=command, stall_seconds=stall_seconds, say=lambda _: None)


def starts(out: Path) -> list[str]:
    return (out / "starts.txt").read_text(encoding="utf-8").splitlines()


def test_every_run_is_recorded_with_its_figures(tmp_path: Path) -> None:
    ran = runner(tmp_path, {})
    ran.run(["oracle-proc", "naive-64"], ["tiny", "nosharing"], rounds=2)
    assert len(ran.results.records) == 2 * 2 * 2 * 2
    one = next(r for r in ran.results.records if r.key == RunKey("naive-64", "tiny", 1, 8))
    assert (one.seconds, one.rows_per_second, one.load_seconds) == (0.8, 10.0, 1.5)
    assert (one.prompt_tokens, one.cached_tokens, one.computed_tokens) == (100, 40, 60)
    assert one.engine_args == dict(suite("cpu").engine_args)
    assert one.device
    assert "daft" in one.versions
    # One process per arm and round, the order rotated.
    assert [line.split()[0] for line in starts(tmp_path)] == ["oracle-proc", "naive-64", "naive-64", "oracle-proc"]


def test_pressure_has_an_engine_per_size(tmp_path: Path) -> None:
    ran = runner(tmp_path, {})
    ran.run(["oracle-proc"], ["tiny", "pressure"], rounds=1)
    sizes = {r.rows: r.engine_args["max_model_len"] for r in ran.results.records if r.workload == "pressure"}
    assert sizes == {4: 1024, 8: 1024}
    assert len(starts(tmp_path)) == len({json.dumps(dict(r.engine_args)) for r in ran.results.records})


def test_a_second_runner_skips_what_is_there(tmp_path: Path) -> None:
    runner(tmp_path, {}).run(["oracle-proc"], ["tiny"], rounds=1)
    again = runner(tmp_path, {})
    again.run(["oracle-proc"], ["tiny"], rounds=2)
    assert {r.round for r in again.results.records} == {0, 1}
    assert len(starts(tmp_path)) == 2
    runner(tmp_path, {}).run(["oracle-proc"], ["tiny"], rounds=2)
    assert len(starts(tmp_path)) == 2


def test_failed_runs_are_skipped_too_unless_asked_for(tmp_path: Path) -> None:
    runner(tmp_path, {"naive-64": "no-load"}).run(["naive-64"], ["tiny"], rounds=1)
    runner(tmp_path, {}).run(["naive-64"], ["tiny"], rounds=1)
    assert len(starts(tmp_path)) == 1
    again = runner(tmp_path, {})
    again.run(["naive-64"], ["tiny"], rounds=1, retry_failed=True)
    assert [r.why_not for r in again.results.records] == [None, None]


@pytest.mark.parametrize(("behaviour", "reason"), [("no-load", "the model is not there"), ("cannot", "needs a GPU")])
def test_an_arm_that_does_not_start_sinks_nothing(tmp_path: Path, behaviour: str, reason: str) -> None:
    ran = runner(tmp_path, {"naive-64": behaviour})
    ran.run(["naive-64", "oracle-proc"], ["tiny", "nosharing"], rounds=1)
    failed = [r for r in ran.results.records if r.arm == "naive-64"]
    assert len(failed) == 4
    assert all(reason in (r.why_not or "") and r.seconds is None for r in failed)
    assert all(r.seconds for r in ran.results.records if r.arm == "oracle-proc")
    assert Counter(line.split()[0] for line in starts(tmp_path)) == {"naive-64": 1, "oracle-proc": 1}


def test_a_crash_costs_the_run_it_happened_in(tmp_path: Path) -> None:
    ran = runner(tmp_path, {"naive-64": "dies-at-tiny"})
    ran.run(["naive-64"], ["skewed", "tiny", "nosharing"], rounds=1)
    reasons = {(r.workload, r.rows): r.why_not for r in ran.results.records}
    assert "out of memory" in (reasons["tiny", 4] or "")
    assert "out of memory" in (reasons["tiny", 8] or "")
    assert [reasons[w, n] for w in ("skewed", "nosharing") for n in (4, 8)] == [None] * 4


def test_what_an_arm_cannot_express_is_recorded(tmp_path: Path) -> None:
    ran = runner(tmp_path, {"daft-provider": "refuses-skewed"})
    ran.run(["daft-provider"], ["skewed", "tiny"], rounds=1)
    assert {r.workload: r.why_not for r in ran.results.records} == {"skewed": "no max_tokens row by row", "tiny": None}


def test_a_worker_that_hangs_is_killed(tmp_path: Path) -> None:
    ran = runner(tmp_path, {"naive-64": "hangs"}, stall_seconds=3.0)
    ran.run(["naive-64"], ["tiny"], rounds=1)
    assert all("reported nothing for 3 s" in (r.why_not or "") for r in ran.results.records)
    assert len(ran.results.records) == 2


def test_cold_is_timed_from_start_to_exit(tmp_path: Path) -> None:
    ran = runner(tmp_path, {})
    ran.run(["oracle-proc", "ours-stream"], ["cold"], rounds=1)
    (one,) = ran.results.records
    assert (one.arm, one.workload, one.rows, one.load_seconds) == ("ours-stream", "cold", 256, None)
    assert one.seconds is not None
    assert one.seconds < 25.6  # the fake says 25.6 s: the process's own time counts
    assert starts(tmp_path) == ["ours-stream True"]


def test_rows_that_are_lost_or_doubled_are_told() -> None:
    assert in_row_order([2, 0, 1], ["c", "a", None], 3) == ["a", None, "c"]
    for ids in ([0, 1], [0, 1, 1]):
        with pytest.raises(ValueError, match="3 rows went in"):
            in_row_order(ids, ["x"] * len(ids), 3)


def test_the_high_water_mark_is_this_process_s_own() -> None:
    import os

    before = high_water_mb(os.getpid())
    block = bytearray(64 << 20)
    assert high_water_mb(os.getpid()) >= before
    assert before > 10
    del block
    assert high_water_mb(2**22 + 1) == 0.0
