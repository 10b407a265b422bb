"""The stage of an arm: its process, and what is recorded of it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.card.plan import Stage, timing_of
from benchmarks.card.processes import Stop, run_child
from benchmarks.card.results import CUT, DONE, FAILED, CardResults
from benchmarks.card.stages.worker import CardTask, Part
from benchmarks.suite.arms import ARMS
from benchmarks.suite.records import Record, RunKey
from benchmarks.suite.runner import last_line
from benchmarks.suite.suites import Suite

WORKER = (sys.executable, "-m", "benchmarks.card.stages.worker")
GRACE_SECONDS = 3.0
"""The process plans to be over this long before it is killed."""
RUN_SHARE = 0.7
"""Share of a workload's time that its longest run is to take; the rest is for the shorter ones and for making texts."""
SLOWEST = 0.4
"""Share of the first arm's speed that is expected at least of an arm that loads the model for each run."""
_FIRST_RUN = {True: 16, False: 2}
"""The first run on a GPU, and on a CPU, has this part of the rows that the suite's short runs have."""


def run_arm(
    stage: Stage,
    suite: Suite,
    results: CardResults,
    environment: Mapping[str, str],
    until: float,
    stop: Stop,
    say: Callable[[str], None],
    command: Sequence[str] = WORKER,
) -> tuple[str, str]:
    """Run a stage's workloads that aren't recorded yet; return the stage's state, and why it isn't done.

    Args:
        stage: which arm and which workloads.
        suite: the device's suite.
        results: where the runs are recorded.
        environment: additional environment variables of the process.
        until: when it is killed, by ``time.monotonic()``.
        stop: ends it early.
        say: called with each line about the progress.
        command: the command that starts the worker.
    """
    setup = results.data["setup"]
    folder = results.folder / "logs"
    parts = _parts(stage, suite, results, until - time.monotonic())
    lines, log, described = (folder / f"{stage.name}.{kind}" for kind in ("jsonl", "log", "json"))
    task = CardTask(
        arm=stage.arm,
        model=setup["model"]["folder"],
        engine_args=setup["engine_args"],
        gpus=suite.gpus,
        round=stage.round,
        until=time.time() + (until - time.monotonic()) - GRACE_SECONDS,
        parts=parts,
        lines=str(lines),
        folder=str(results.folder),
    )
    task.save(described)
    events: list[dict[str, Any]] = []

    def on_line(event: dict[str, Any]) -> None:
        events.append(event)
        if event["event"] == "ran":
            opened = next((one["load_seconds"] for one in events if one["event"] == "opened"), None)
            record = _record(stage, event, opened, results)
            results.add(record)
            note = f", {record.failed_rows} rows FAILED" if record.failed_rows else ""
            figures = f"{record.seconds:.2f} s, {record.rows_per_second:.2f} rows/s{note}"
            say(f"  {record.workload}, {record.rows} rows: {figures}")
        elif event["event"] == "measured":
            results.add_measured_part(stage.name, event["workload"])

    ended = run_child(
        [*command, str(described)],
        environment={**suite.environment, **ARMS[stage.arm].environment, **environment},
        log=log,
        lines=lines,
        until=until,
        stop=stop,
        on_line=on_line,
    )
    return _state(stage, events, results.measured_parts(stage.name), ended.why, log)


def _state(stage: Stage, events: list[dict[str, Any]], over: set[str], killed: str, log: Path) -> tuple[str, str]:
    refused = {event["workload"]: event["why_not"] for event in events if event["event"] == "failed"}
    cannot = next((event["why_not"] for event in events if event["event"] == "cannot"), None)
    if cannot:
        return FAILED, cannot
    if killed:
        doing = f"after {', '.join(sorted(over))}" if over else "before a workload was finished"
        return CUT, f"{killed}, {doing}"
    missing = [workload for workload in stage.workloads if workload not in over and workload not in refused]
    no_time = {event["workload"] for event in events if event["event"] == "no time"}
    if set(missing) - no_time:
        return FAILED, f"its process ended: {last_line(log)}"
    reasons = [f"no time for {', '.join(missing)}"] if missing else []
    reasons += [f"{workload}: {why}" for workload, why in refused.items()]
    return CUT if missing else FAILED if refused and not over else DONE, "; ".join(reasons)


def first_rows(suite: Suite, workload: str) -> int:
    """Return the rows of the first run of a workload."""
    return max(1, suite.rows[workload][0] // _FIRST_RUN[bool(suite.gpus)])


def _parts(stage: Stage, suite: Suite, results: CardResults, seconds: float) -> list[Part]:
    timing = timing_of(suite)
    over = results.measured_parts(stage.name)
    parts = []
    for position, workload in enumerate(stage.workloads):
        if workload in over:
            continue
        agreed = results.agreed_rows(workload)
        if agreed and not ARMS[stage.arm].keeps_engine:
            agreed = min(agreed, _affordable(workload, results, seconds - stage.load - GRACE_SECONDS))
        parts.append(
            Part(workload, first_rows(suite, workload), RUN_SHARE * (timing.more if position else timing.run), agreed)
        )
    return parts


def _affordable(workload: str, results: CardResults, seconds: float) -> int:
    """Return the rows that an arm surely answers in these seconds, if it is not slower than ``SLOWEST``."""
    rates = [one.rows_per_second or 0.0 for one in results.records if one.workload == workload and one.seconds]
    return max(1, int(max(rates) * SLOWEST * max(seconds, 1.0)))


def _optimal(stage: Stage, event: Mapping[str, Any], results: CardResults) -> int | None:
    """Return what daft-vllm's arm has counted for the same rows."""
    same = (event["workload"], stage.round, event["rows"])
    found = (one.optimal_tokens for one in results.records if (one.workload, one.round, one.rows) == same)
    return next((tokens for tokens in found if tokens), None)


def _record(stage: Stage, event: Mapping[str, Any], opened: float | None, results: CardResults) -> Record:
    setup = results.data["setup"]
    key = RunKey(stage.arm, event["workload"], stage.round, event["rows"])
    return replace(
        Record.of_run(key, event, opened),
        optimal_tokens=event.get("optimal_tokens") or _optimal(stage, event, results),
        device=setup["device"]["name"],
        versions=setup["versions"],
        engine_args=setup["engine_args"],
    )
