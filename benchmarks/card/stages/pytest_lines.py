"""A plugin of pytest that appends each test's outcome to a file once it is known.

Its option is ``-p benchmarks.card.stages.pytest_lines``. The environment variable ``CARD_TEST_LINES`` names the file.
pytest's own reports are written at the end, and a run that is cut has none.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

VARIABLE = "CARD_TEST_LINES"


def pytest_runtest_logstart(nodeid: str, location: Any) -> None:
    """Note that a test begins."""
    _say({"event": "began", "test": nodeid})


def pytest_runtest_logreport(report: Any) -> None:
    """Note how a test ended: in its set-up, itself, or in its tear-down."""
    if report.when == "call" or report.failed or report.skipped:
        why = "" if report.passed else _reason(report)
        outcome = "timed out" if report.failed and "Timeout" in why else report.outcome
        _say({"event": "ended", "test": report.nodeid, "outcome": outcome, "seconds": report.duration, "why": why})


def pytest_collectreport(report: Any) -> None:
    """Note a file that can't be imported."""
    if report.failed:
        why = str(report.longrepr)[-400:]
        _say({"event": "ended", "test": report.nodeid, "outcome": "failed", "seconds": 0.0, "why": why})


def _reason(report: Any) -> str:
    if isinstance(report.longrepr, tuple):  # file, line and reason of a skipped test
        return str(report.longrepr[2])[:400]
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash is not None else report.longrepr).strip()[:400]


def _say(event: dict[str, Any]) -> None:
    place = os.environ.get(VARIABLE)
    if place:
        with Path(place).open("a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")
