"""The run, with child processes that need no engine: its time, its end, its continuation, and what it leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.card.run import CardRun
from benchmarks.suite.suites import suite
from tests.helpers import wait_gone

ARMS = ["ours-stream", "naive-64"]


def begin(folder: Path, behaviour: dict[str, Any], seconds: float, arms: list[str] = ARMS) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    (folder / "behaviour.json").write_text(json.dumps(behaviour), encoding="utf-8")
    command = [sys.executable, "-m", "tests.benchmarks.card.short_run", str(folder), str(seconds), ",".join(arms)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run(folder: Path, behaviour: dict[str, Any], seconds: float = 30, arms: list[str] = ARMS) -> tuple[int, str]:
    process = begin(folder, behaviour, seconds, arms)
    output, _ = process.communicate(timeout=60)
    return process.returncode, output


def results(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return found


def states(folder: Path) -> dict[str, str]:
    return {name: one["state"] for name, one in results(folder)["stages"].items() if "round" not in name}


def starts(folder: Path) -> list[str]:
    return (folder / "starts.txt").read_text(encoding="utf-8").splitlines()


def no_orphans(folder: Path) -> bool:
    pids = [int(pid) for line in (folder / "orphans.txt").read_text().splitlines() for pid in line.split()]
    return bool(pids) and not wait_gone(pids, seconds=2)


def page(folder: Path) -> str:
    assert (folder / "report.md").is_file()
    return (folder / "page.html").read_text(encoding="utf-8")


def test_everything_is_measured_and_shown(tmp_path: Path) -> None:
    status, output = run(tmp_path, {})
    assert status == 0, output
    assert states(tmp_path) == dict.fromkeys(["set-up", "tests", *ARMS], "done")
    found = results(tmp_path)
    blog = {(one["arm"], one["rows"]): one for one in found["records"] if one["workload"] == "blog"}
    one = next(iter(blog.values()))
    assert (one["rows_per_second"], one["load_seconds"], one["computed_tokens"], one["steps"]) == (10.0, 0.5, 60, 50)
    # The second arm runs as many rows as the first.
    assert {rows for arm, rows in blog if arm == "naive-64"} == {rows for arm, rows in blog if arm == "ours-stream"}
    assert found["tests"]["tests/a.py::two"]["outcome"] == "failed"
    text = page(tmp_path)
    for word in ("Made-up CPU", "naive-64", "tests/a.py::two", "<svg", "prefers-color-scheme: dark", "finished"):
        assert word in text
    assert "http" not in text.replace("http-equiv", ""), "the page loads nothing"
    report = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "| tests/a.py | 1 | 1 |" in report
    assert "## Rows a second: blog" in report


def test_a_second_call_runs_only_what_is_missing(tmp_path: Path) -> None:
    run(tmp_path, {"naive-64": "hangs after one", "tests": "hangs after one"}, seconds=15)
    assert states(tmp_path) == {"set-up": "done", "tests": "cut", "ours-stream": "done", "naive-64": "cut"}
    before = starts(tmp_path)
    status, output = run(tmp_path, {})
    assert status == 0, output
    assert set(states(tmp_path).values()) == {"done"}
    now = starts(tmp_path)[len(before) :]
    assert now[:3] == ["set-up", "tests", "naive-64 tiny instructions"]
    outcomes = {name: one["outcome"] for name, one in results(tmp_path)["tests"].items()}
    assert outcomes == {"tests/a.py::one": "passed", "tests/a.py::two": "failed", "tests/b.py::three": "passed"}
    assert len(results(tmp_path)["calls"]) == 2
    assert "in 2 calls" in page(tmp_path)


@pytest.mark.parametrize("stage", ["set-up", "tests", "ours-stream", "naive-64"])
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_any_stage_leaves_results_and_a_page(tmp_path: Path, stage: str, how: signal.Signals) -> None:
    process = begin(tmp_path, {stage: "hangs"}, seconds=60)
    deadline = time.monotonic() + 40
    while not (tmp_path / "orphans.txt").is_file() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(how)
    output, _ = process.communicate(timeout=10)
    assert process.returncode == 128 + how, output
    found = states(tmp_path)
    assert found[stage] == "cut"
    names = ["set-up", "tests", *ARMS]
    assert [found[name] for name in names[: names.index(stage)]] == ["done"] * names.index(stage)
    if stage != "set-up":
        assert all(found[name] == "skipped" for name in names[names.index(stage) + 1 :])
    assert f"stopped by {how.name}" in page(tmp_path)
    assert no_orphans(tmp_path)


@pytest.mark.parametrize("stage", ["set-up", "tests", "ours-stream"])
def test_the_time_is_a_hard_limit_in_any_stage(tmp_path: Path, stage: str) -> None:
    began = time.monotonic()
    run(tmp_path, {stage: "hangs"}, seconds=9)
    assert time.monotonic() - began < 9.5
    assert results(tmp_path)["stages"][stage]["why"].startswith("its time was over")
    assert stage in page(tmp_path)
    assert no_orphans(tmp_path)


def test_what_has_no_time_is_said(tmp_path: Path) -> None:
    slow = dict.fromkeys(["ours-stream", "naive-64", "daft-provider", "ray-data"], 0.6)
    run(tmp_path, slow, seconds=7.5, arms=list(slow))
    found = results(tmp_path)["stages"]
    skipped = [name for name, one in found.items() if one["state"] == "skipped"]
    assert skipped
    for name in skipped:
        assert "it needs" in found[name]["why"] or "before it began" in found[name]["why"]
        assert f"{name} skipped" in page(tmp_path)


def test_an_arm_that_breaks_sinks_nothing(tmp_path: Path) -> None:
    status, output = run(tmp_path, {"ours-stream": "breaks", "naive-64": "cannot"}, arms=[*ARMS, "daft-provider"])
    assert status == 0, output
    found = results(tmp_path)["stages"]
    assert "it broke" in found["ours-stream"]["why"]
    assert found["naive-64"]["why"] == "ray is not installed"
    assert found["daft-provider"]["state"] == "done"
    before = len(starts(tmp_path))
    run(tmp_path, {}, arms=[*ARMS, "daft-provider"])
    assert not any(line.startswith(("ours-stream blog", "naive-64 blog")) for line in starts(tmp_path)[before:][:2])


def test_a_refusal_ends_the_run(tmp_path: Path) -> None:
    status, output = run(tmp_path, {"set-up": "cannot"})
    assert status == 2
    assert "is for another card" in output
    assert starts(tmp_path) == ["set-up"]
    assert "is for another card" in page(tmp_path)


def test_results_of_another_run_are_refused(tmp_path: Path) -> None:
    run(tmp_path, {})
    with pytest.raises(ValueError, match="holds results of suite cpu, not l4"):
        CardRun(suite("l4"), 12, tmp_path)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "results.json").write_text("[]")
    with pytest.raises(ValueError, match="without --minutes"):
        CardRun(suite("l4"), 12, tmp_path / "old")


def test_a_killed_run_leaves_its_page_and_no_child(tmp_path: Path) -> None:
    process = begin(tmp_path, {"naive-64": "hangs"}, seconds=60)
    deadline = time.monotonic() + 40
    while not (tmp_path / "orphans.txt").is_file() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert "ours-stream" in page(tmp_path)
    assert results(tmp_path)["records"]
    child, grandchild = map(int, (tmp_path / "orphans.txt").read_text().split())
    assert not wait_gone([child], seconds=5), "the kernel kills the child"
    os.kill(grandchild, signal.SIGKILL)  # nobody is left who could
