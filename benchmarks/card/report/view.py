"""What the page and the report show, made from the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.card.plan import CARD_ARMS
from benchmarks.card.report.roofline import Roof, roof_of
from benchmarks.card.results import CUT, DONE, FAILED, CardResults
from benchmarks.card.stages.correctness import by_file
from benchmarks.suite.arms import ARMS
from benchmarks.suite.records import Record
from benchmarks.suite.summary import Summary, summarise
from daft_vllm.errors import DaftVLLMError
from daft_vllm.model_configs import ModelConfig, derived_config, known_models

OURS = "ours-stream"
MEANINGS = {
    "ours-stream": "daft-vllm, the engine in the script's process",
    "oracle-proc": "one LLM.generate over the whole list, sorted by tokens",
    "oracle-inproc": "the same, vLLM's core in the script's process",
    "naive-64": "daft.cls around LLM.generate, batches of 64 rows",
    "daft-provider": "Daft's prompt with its provider vllm-prefix-caching",
    "ray-data": "Ray Data LLM, batches of 64 rows",
}


@dataclass(frozen=True)
class Line:
    """An arm on a workload.

    Args:
        arm: the arm.
        meaning: what it is, in words.
        rate: rows a second of its largest run. None: it has none.
        share: the rate, divided by the best of the workload: the length of its bar.
        behind: how many times as fast as this arm daft-vllm is. None: unknown.
        summary: its figures.
        note: what has to be said about it.
    """

    arm: str
    meaning: str
    rate: float | None
    share: float
    behind: float | None
    summary: Summary
    note: str = ""


@dataclass(frozen=True)
class View:
    """Everything that is shown; ``workloads`` has the lines of each."""

    title: str
    state: str
    setup: Mapping[str, str]
    tests: Mapping[str, Mapping[str, int]]
    failures: Sequence[tuple[str, str, str]]
    workloads: Mapping[str, Sequence[Line]]
    roofs: Sequence[Roof]
    stages: Sequence[Mapping[str, Any]]
    missing: Sequence[str]
    has_card: bool = False
    outcomes: Sequence[str] = field(default=("passed", "failed", "timed out", "cut", "skipped"))


def view_of(results: CardResults) -> View:
    """Return what there is to show, whatever is missing."""
    data = results.data
    setup = data["setup"]
    device = setup.get("device", {}).get("name") or f"suite {data['suite']}"
    tests = data["tests"]
    return View(
        title=f"daft-vllm on {device}",
        state=_state(data),
        setup=_setup(data),
        tests=by_file(tests),
        failures=[
            (name, one["outcome"], one["why"]) for name, one in tests.items() if one["outcome"] not in ("passed",)
        ],
        workloads=_workloads(results),
        roofs=_roofs(results),
        stages=_stages(data),
        missing=_missing(data),
        has_card=bool(setup.get("device", {}).get("card")),
    )


def _state(data: Mapping[str, Any]) -> str:
    calls = data["calls"]
    if not calls:
        return "Nothing has run yet."
    seconds = sum(call.get("seconds", 0.0) for call in calls)
    often = f"in {len(calls)} calls" if len(calls) > 1 else "in one call"
    ended = calls[-1].get("how") or "still running, or killed"
    return f"{seconds / 60:.1f} minutes {often}. The last one: {ended.removesuffix('.')}."


def _setup(data: Mapping[str, Any]) -> dict[str, str]:
    setup = data["setup"]
    if not setup:
        return {"set-up": data["stages"].get("set-up", {}).get("why") or "not done"}
    device, model = setup["device"], setup["model"]
    found = {"device": device["name"]}
    if device["card"]:
        found["memory"] = (
            f"{device['total'] / 2**30:.1f} GiB, {device['free'] / 2**30:.1f} GiB of them free at the start"
        )
        found["driver"] = device["driver"]
    found["model"] = f"{model['name']} ({model['why']}); {setup['weights'] / 2**30:.2f} GiB of weights"
    found["versions"] = ", ".join(f"{name} {version}" for name, version in setup["versions"].items())
    found["engine"] = ", ".join(f"{name}={value}" for name, value in setup["engine_args"].items())
    return found


def _workloads(results: CardResults) -> dict[str, list[Line]]:
    summaries = summarise(results.records)
    found: dict[str, list[Line]] = {}
    for workload in dict.fromkeys(one.workload for one in summaries):
        mine = sorted((one for one in summaries if one.workload == workload), key=_place)
        best = max((_rate(one) or 0.0 for one in mine), default=0.0)
        ours = next((_rate(one) for one in mine if one.arm == OURS), None)
        most = max(one.rows for one in mine)
        found[workload] = [_line(one, best, ours, most, results.records) for one in mine]
    return found


def _line(one: Summary, best: float, ours: float | None, most: int, records: Sequence[Record]) -> Line:
    rate = _rate(one)
    notes = [f"{one.rows} rows, and not {most}, in the time it had"] if one.rows != most else []
    runs = [r for r in records if (r.arm, r.workload) == (one.arm, one.workload)]
    failed = sum(r.failed_rows for r in runs)
    notes += [f"{failed} rows failed"] if failed else []
    return Line(
        arm=one.arm,
        meaning=MEANINGS.get(one.arm, ARMS[one.arm].kind if one.arm in ARMS else ""),
        rate=rate,
        share=rate / best if rate and best else 0.0,
        behind=ours / rate if ours and rate and one.arm != OURS else None,
        summary=one,
        note="; ".join(notes),
    )


def _rate(summary: Summary) -> float | None:
    """Rows a second over a whole run: every arm has that, also one with a single run."""
    return summary.plain.median if summary.plain else None


def _place(summary: Summary) -> int:
    return CARD_ARMS.index(summary.arm) if summary.arm in CARD_ARMS else len(CARD_ARMS)


def _roofs(results: CardResults) -> list[Roof]:
    config = _config(results.data["setup"])
    if config is None:
        return []
    largest: dict[tuple[str, str], Record] = {}
    for record in results.records:
        key = (record.workload, record.arm)
        if record.seconds and (key not in largest or record.rows >= largest[key].rows):
            largest[key] = record
    return [roof_of(record, results.data["setup"], config) for record in largest.values()]


def _config(setup: Mapping[str, Any]) -> ModelConfig | None:
    if not setup:
        return None
    name = setup["model"]["name"].partition(",")[0]
    try:
        return known_models().get(name) or derived_config(setup["model"]["folder"])
    except (DaftVLLMError, ImportError, OSError):
        return None


def _stages(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    planned = {one["name"]: one for one in data["plan"]}
    found = []
    for name in dict.fromkeys([*planned, *data["stages"]]):
        one, ended = planned.get(name, {}), data["stages"].get(name, {})
        state = ended.get("state") or ("not begun" if one.get("seconds") else "left out")
        why = ended.get("why") or (one.get("why_not", "") if not ended.get("state") else "")
        found.append(
            {
                "name": name,
                "what": one.get("what", ""),
                "planned": one.get("seconds", 0.0),
                "took": ended.get("seconds"),
                "state": state,
                "why": why,
            }
        )
    return found


def _missing(data: Mapping[str, Any]) -> list[str]:
    verbs = {CUT: "was cut", FAILED: "failed", "left out": "was left out", "not begun": "did not begin"}
    return [
        f"{one['name']} {verbs.get(one['state'], one['state'])}{': ' + one['why'] if one['why'] else ''}"
        for one in _stages(data)
        if one["state"] != DONE or one["why"]
    ]
