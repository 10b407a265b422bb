"""A run with made-up children and a timing of seconds: ``python -m tests.benchmarks.card.short_run FOLDER SECONDS``."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil

from benchmarks.card import plan, run
from benchmarks.suite.suites import suite

SHORT = plan.Timing(set_up=1.5, tests=1.5, compile=0, load=1, run=1, more=0.5)
CHILD = [sys.executable, str(Path(__file__).with_name("fake_child.py"))]


def main(folder: Path, seconds: float, arms: list[str]) -> int:
    plan.timing_of = lambda suite: SHORT  # type: ignore[assignment]
    plan.page_seconds = run.page_seconds = lambda total: 1.5  # type: ignore[assignment]
    plan._START_SECONDS = 0
    one = run.CardRun(
        suite("cpu"),
        seconds / 60,
        folder,
        arms=arms,
        setting_up=[*CHILD, "set-up"],
        worker=[*CHILD, "arm"],
        pytest=[*CHILD, "tests"],
        started=psutil.Process().create_time(),
        say=lambda line: print(line, flush=True),
    )
    return one.run()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3].split(",")))
