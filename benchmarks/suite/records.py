"""Records of runs, and the file that keeps them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple


class RunKey(NamedTuple):
    """What identifies a run within one results file."""

    arm: str
    workload: str
    round: int
    rows: int


@dataclass(frozen=True)
class Record:
    """One run of one job by one arm; a figure is None if it was not measured.

    Attributes:
        seconds: time of the run without loading the model; for the workload ``cold``, time of the whole process.
        load_seconds: time of loading the model that this run used.
        computed_tokens: prompt tokens that did not come from the cache.
        optimal_tokens: the fewest prompt tokens that have to be computed, in the best order of the rows.
        mean_running: running sequences, averaged over vLLM's steps.
        output_tokens: tokens of all answers.
        steps: steps of vLLM's scheduler.
        failed_rows: rows without an answer, which the figures count as rows.
        peak_rss_mb: sum of the largest resident sets of the arm's processes, up to the end of this run.
        why_not: why there are no figures.
    """

    arm: str
    workload: str
    round: int
    rows: int
    seconds: float | None = None
    rows_per_second: float | None = None
    load_seconds: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    computed_tokens: int | None = None
    optimal_tokens: int | None = None
    mean_running: float | None = None
    output_tokens: int | None = None
    steps: int | None = None
    failed_rows: int = 0
    peak_rss_mb: float | None = None
    device: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    why_not: str | None = None

    @property
    def key(self) -> RunKey:
        """What identifies this run."""
        return RunKey(self.arm, self.workload, self.round, self.rows)

    @classmethod
    def of_run(cls, key: RunKey, event: Mapping[str, Any], opened: float | None) -> Record:
        """Return the record of what a worker says of a run.

        Args:
            key: the run.
            event: what the worker says.
            opened: seconds that its load took, if the run did not load anything itself.
        """
        prompt_tokens, cached_tokens = event["prompt_tokens"], event["cached_tokens"]
        known = prompt_tokens is not None and cached_tokens is not None
        return cls(
            **key._asdict(),
            seconds=round(event["seconds"], 4),
            rows_per_second=round(key.rows / event["seconds"], 4),
            load_seconds=event["load_seconds"] if event["load_seconds"] is not None else opened,
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            computed_tokens=prompt_tokens - cached_tokens if known else None,
            mean_running=event["mean_running"],
            output_tokens=event.get("output_tokens"),
            steps=event.get("steps"),
            failed_rows=event.get("failed_rows") or 0,
            peak_rss_mb=event["peak_rss_mb"],
        )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Record:
        """Read a record, ignoring unknown keys."""
        names = {f.name for f in fields(cls)}
        return cls(**{name: value for name, value in data.items() if name in names})


class ResultsFile:
    """The records of a benchmark. They are on disk after each run, so a benchmark that is killed loses none of them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.records: list[Record] = []
        if path.is_file():
            self.records = [Record.from_dict(data) for data in json.loads(path.read_text(encoding="utf-8"))]

    def keys(self, *, failed: bool = True) -> set[RunKey]:
        """Return the runs that are recorded; with ``failed=False`` only those with figures."""
        return {record.key for record in self.records if failed or record.why_not is None}

    def add(self, record: Record) -> None:
        """Add a record, replacing an earlier one of the same run, and write the file."""
        self.records = [one for one in self.records if one.key != record.key] + [record]
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps([asdict(one) for one in self.records], indent=1), encoding="utf-8")
        part.replace(self._path)


def add_answers(folder: Path, key: RunKey, digests: list[str | None]) -> None:
    """Store the SHA-256 of each row's text beside the results, one file per arm, workload and round."""
    path = answers_path(folder, key)
    answers = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    answers[str(key.rows)] = digests
    path.write_text(json.dumps(answers), encoding="utf-8")


def read_answers(folder: Path, key: RunKey) -> list[str | None] | None:
    """Return what ``add_answers`` stored, or None."""
    path = answers_path(folder, key)
    if not path.is_file():
        return None
    digests: list[str | None] | None = json.loads(path.read_text(encoding="utf-8")).get(str(key.rows))
    return digests


def answers_path(folder: Path, key: RunKey) -> Path:
    """Return the file of an arm's answers."""
    return folder / f"answers-{key.arm}-{key.workload}-{key.round}.json"
