"""The stage of the set-up: its process, and what is kept of what it found."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.card.processes import Stop, run_child
from benchmarks.card.results import CUT, DONE, FAILED, CardResults
from benchmarks.suite.runner import last_line
from benchmarks.suite.suites import Suite

SETTING_UP = (sys.executable, "-m", "benchmarks.card.stages.setting_up")


def set_up(
    suite: Suite,
    model: str | None,
    results: CardResults,
    environment: Mapping[str, str],
    until: float,
    stop: Stop,
    command: Sequence[str] = SETTING_UP,
) -> tuple[str, str]:
    """Look at the device and write the model; return the stage's state, and why it isn't done.

    Args:
        suite: the suite that the device has to be of.
        model: a folder, or a known model's name. None: the suite's choice.
        results: where what was found is kept. If they have runs, the device has to be the one of these.
        environment: additional environment variables of the process.
        until: when it is killed, by ``time.monotonic()``.
        stop: ends it early.
        command: the command that does it.
    """
    logs = results.folder / "logs"
    task, lines, log = logs / "set-up.json", logs / "set-up.jsonl", logs / "set-up.log"
    described = {"suite": suite.name, "dtype": suite.engine_args.get("dtype"), "model": model}
    task.write_text(json.dumps({**described, "out": str(results.folder), "lines": str(lines)}), encoding="utf-8")
    found: list[dict[str, Any]] = []
    ended = run_child(
        [*command, str(task)],
        environment=environment,
        log=log,
        lines=lines,
        until=until,
        stop=stop,
        on_line=found.append,
    )
    if ended.why:
        return CUT, ended.why
    if not found:
        return FAILED, f"the set-up ended with status {ended.status}: {last_line(log)}"
    if "refused" in found[0]:
        return FAILED, found[0]["refused"]
    earlier = results.data["setup"].get("device", {}).get("name")
    now = found[0]["device"]["name"]
    if results.records and earlier not in (None, now):
        return FAILED, f"the results are of another device, {earlier} and not {now}: choose another folder"
    results.data["setup"] = found[0]
    return DONE, ""
