"""The tests that a run on a card begins with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.card.processes import Stop
from benchmarks.card.results import CardResults
from benchmarks.card.stages.correctness import by_file, files_with_gpu_tests, run_tests
from benchmarks.card.stages.pytest_lines import VARIABLE

CODE = """
import time, pytest
def test_good(): pass
def test_bad(): assert 1 == 2
def test_slow(): time.sleep(20)
@pytest.mark.skip(reason="not here")
def test_left_out(): pass
@pytest.fixture
def broken():
    yield
    raise OSError("the tear-down")
def test_tear_down(broken): pass
"""


def test_every_file_with_marked_tests_is_found() -> None:
    found = files_with_gpu_tests()
    assert {"tests/gpu/test_features.py", "tests/test_gpu.py"} <= set(found)
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "--collect-only", "-q", "-p", "no:cacheprovider"]
    listed = subprocess.run([*command, "tests"], capture_output=True, text=True, check=False).stdout
    assert {line.partition("::")[0] for line in listed.splitlines() if "::" in line} == set(found)


def test_outcomes_are_written_as_they_come(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(CODE)
    lines = tmp_path / "lines.jsonl"
    command = [sys.executable, "-m", "pytest", "-p", "benchmarks.card.stages.pytest_lines", "-o", "timeout=1", "-q"]
    environment = {**os.environ, VARIABLE: str(lines), "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([*command, str(tmp_path / "test_some.py")], env=environment, capture_output=True, check=False)
    events = [json.loads(line) for line in lines.read_text().splitlines()]
    ended = {}
    for event in events:
        if event["event"] == "ended":
            ended[event["test"].partition("::")[2]] = (event["outcome"], event["why"])
    assert ended["test_good"] == ("passed", "")
    assert ended["test_bad"] == ("failed", "assert 1 == 2")
    assert ended["test_slow"][0] == "timed out"
    assert ended["test_left_out"] == ("skipped", "Skipped: not here")
    assert ended["test_tear_down"] == ("failed", "OSError: the tear-down")


def test_tests_that_do_not_start_are_no_success(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    results = CardResults(tmp_path / "results.json")
    broken = [sys.executable, "-c", "raise SystemExit('ImportError: no pytest')"]
    state, why = run_tests(results, {}, time.monotonic() + 30, Stop(), print, gpus=0, command=broken)
    assert state == "failed"
    assert "status 1: ImportError: no pytest" in why


def test_counts_by_file() -> None:
    outcomes = {"a.py::x": "passed", "a.py::y": "cut", "b.py": "failed"}
    tests = {name: {"outcome": outcome} for name, outcome in outcomes.items()}
    assert by_file(tests) == {"a.py": {"passed": 1, "cut": 1}, "b.py": {"failed": 1}}
