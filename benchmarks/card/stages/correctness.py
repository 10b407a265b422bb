"""The stage of the tests: ``pytest -m gpu``, before anything is timed."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.card.processes import Stop, run_child
from benchmarks.card.results import CUT, DONE, FAILED, SKIPPED, CardResults
from benchmarks.card.stages.pytest_lines import VARIABLE
from benchmarks.suite.runner import ROOT, last_line

PYTEST = (sys.executable, "-m", "pytest")
ON_CPU = "DAFT_VLLM_GPU_TESTS_ON_CPU"
"""With this environment variable, tests of ``tests/gpu/`` run on the CPU where there is no GPU."""
TEST_SHARE = 0.6
"""Share of the stage that one test may take: a test that hangs is not to hide all others."""
_NOTHING_COLLECTED = 5
_MARK = re.compile(r"mark\.gpu\b")


def run_tests(
    results: CardResults,
    environment: Mapping[str, str],
    until: float,
    stop: Stop,
    say: Callable[[str], None],
    *,
    gpus: int,
    command: Sequence[str] = PYTEST,
) -> tuple[str, str]:
    """Run the tests whose outcome isn't recorded yet; return the stage's state, and why it isn't done.

    Args:
        results: where each test's outcome is recorded.
        environment: additional environment variables.
        until: when they are killed, by ``time.monotonic()``.
        stop: ends them early.
        say: called with each test that did not pass.
        gpus: GPUs of the suite. 0: the same tests run on the CPU, those that can.
        command: the command that runs pytest.
    """
    if command is PYTEST and find_spec("pytest") is None:
        return SKIPPED, "pytest is not installed: pip install '.[test]'"
    files = files_with_gpu_tests()
    if not files:
        return SKIPPED, f"there are no tests in {ROOT}: run from a checkout"
    known = results.data["tests"]
    done = [name for name, found in known.items() if found["outcome"] not in ("running", "cut")]
    limit = max(30.0, TEST_SHARE * (until - time.monotonic()))
    arguments = [
        "-m",
        "gpu",
        "-p",
        "benchmarks.card.stages.pytest_lines",
        "-p",
        "no:cacheprovider",
        "--no-header",
        "-q",
    ]
    arguments += ["-o", f"timeout={limit:.0f}", *(part for name in done for part in ("--deselect", name)), *files]
    logs = results.folder / "logs"
    lines, log = logs / "tests.jsonl", logs / "tests.log"

    def on_line(event: dict[str, Any]) -> None:
        if event["event"] == "began":
            results.add_test(event["test"], "running", 0.0, "")
            return
        earlier = known.get(event["test"], {}).get("outcome")
        if earlier in ("failed", "timed out"):  # and now its tear-down failed too
            return
        results.add_test(event["test"], event["outcome"], event["seconds"], event["why"])
        if event["outcome"] not in ("passed", "skipped"):
            say(f"  {event['test']}: {event['outcome']}: {event['why'].splitlines()[0] if event['why'] else ''}")

    ended = run_child(
        [*command, *arguments],
        environment={**environment, VARIABLE: str(lines), **({} if gpus else {ON_CPU: "1"})},
        log=log,
        lines=lines,
        until=until,
        stop=stop,
        on_line=on_line,
    )
    running = [name for name, found in known.items() if found["outcome"] == "running"]
    for name in running:
        results.add_test(name, "cut", 0.0, ended.why or f"the process ended: {last_line(log)}")
    if ended.why:
        return CUT, f"{ended.why}{', in ' + running[0] if running else ''}"
    if ended.status not in (0, 1, _NOTHING_COLLECTED) or (ended.status == 1 and not known):
        return FAILED, f"pytest ended with status {ended.status}: {last_line(log)}"
    return DONE, ""


def files_with_gpu_tests() -> list[str]:
    """Return the files with tests that are marked ``gpu``, so that pytest imports no others."""
    tests = ROOT / "tests"
    found = {path for path in tests.rglob("test_*.py") if _MARK.search(path.read_text(encoding="utf-8"))}
    found |= set((tests / "gpu").glob("test_*.py"))  # marked by ``MARKS``
    return sorted(str(path.relative_to(ROOT)) for path in found)


def by_file(tests: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Return how many tests of each file had which outcome."""
    found: dict[str, dict[str, int]] = {}
    for name, one in tests.items():
        counts = found.setdefault(Path(name.partition("::")[0]).as_posix(), {})
        counts[one["outcome"]] = counts.get(one["outcome"], 0) + 1
    return found
