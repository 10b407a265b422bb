"""The results of a run, on disk as soon as each is there."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.suite.records import Record

DONE, CUT, FAILED, SKIPPED = "done", "cut", "failed", "skipped"
"""States of a stage. One that is done or failed isn't run again; one that was cut or skipped is."""


class CardResults:
    """What ``results.json`` holds.

    Attributes:
        data: all but the records: ``suite``, ``model``, ``calls``, ``setup``, ``plan``, ``stages``, ``tests``.
        records: the runs of the arms.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.data: dict[str, Any] = {"suite": "", "model": "", "calls": [], "setup": {}, "plan": [], "stages": {}}
        self.data["tests"] = {}
        self.records: list[Record] = []
        if path.is_file():
            found = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(found, dict) or "stages" not in found:
                raise ValueError(f"{path} has results of a run without --minutes: choose another folder")
            self.records = [Record.from_dict(one) for one in found.pop("records", [])]
            self.data.update(found)

    @property
    def folder(self) -> Path:
        """The folder of the results."""
        return self._path.parent

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The calls that have worked on these results."""
        found: list[dict[str, Any]] = self.data["calls"]
        return found

    def save(self) -> None:
        """Write the file; a reader, or a crash, never meets half of one."""
        part = self._path.with_suffix(".part")
        part.write_text(
            json.dumps({**self.data, "records": [asdict(one) for one in self.records]}, indent=1), encoding="utf-8"
        )
        part.replace(self._path)

    def add(self, record: Record) -> None:
        """Add a run, replacing an earlier one of the same key, and save."""
        self.records = [one for one in self.records if one.key != record.key] + [record]
        self.save()

    def add_test(self, name: str, outcome: str, seconds: float, why: str) -> None:
        """Add a test's outcome and save."""
        self.data["tests"][name] = {"outcome": outcome, "seconds": round(seconds, 2), "why": why}
        self.save()

    def stage(self, name: str, state: str, *, seconds: float = 0.0, limit: float = 0.0, why: str = "") -> None:
        """Note how a stage ended, add its seconds to those of earlier tries, and save."""
        seconds += self.data["stages"].get(name, {}).get("seconds", 0.0)
        ended = {"state": state, "seconds": round(seconds, 1), "limit": round(limit, 1), "why": why}
        self.data["stages"].setdefault(name, {}).update(ended)
        self.save()

    def measured_parts(self, stage: str) -> set[str]:
        """Return the workloads of an arm's stage that are finished, and so don't run again."""
        return set(self.data["stages"].get(stage, {}).get("measured", []))

    def add_measured_part(self, stage: str, workload: str) -> None:
        """Note that a workload of an arm's stage is finished and save."""
        found = self.data["stages"].setdefault(stage, {}).setdefault("measured", [])
        if workload not in found:
            found.append(workload)
        self.save()

    def forget_failures(self) -> None:
        """Let stages and tests that failed run again."""
        stages, tests = self.data["stages"], self.data["tests"]
        for name in [name for name, one in stages.items() if one.get("state") == FAILED]:
            stages[name]["state"] = CUT
        for name in [name for name, one in tests.items() if one["outcome"] in ("failed", "timed out")]:
            del tests[name]
            stages["tests"]["state"] = CUT

    def is_over(self, stage: str) -> bool:
        """Whether a stage doesn't run again."""
        return self.data["stages"].get(stage, {}).get("state") in (DONE, FAILED)

    def measured(self, arm: str, workload: str, round_number: int) -> list[Record]:
        """Return an arm's runs of a workload that have figures."""
        return [
            one
            for one in self.records
            if (one.arm, one.workload, one.round) == (arm, workload, round_number) and one.seconds is not None
        ]

    def agreed_rows(self, workload: str) -> int | None:
        """Return the rows of the largest run of the first arm that ran the workload. None: none did."""
        first = next((one.arm for one in self.records if one.workload == workload and one.seconds is not None), None)
        return max((one.rows for one in self.measured(first, workload, 0)), default=None) if first else None
