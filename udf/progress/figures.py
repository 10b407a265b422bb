"""What the engines of a job do now, and how fast: read from the folder in which they keep their counters."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from daft_vllm.engine import EngineFigures
from daft_vllm.folders import PROGRESS_PREFIX, RUN_PREFIX, is_held, write_whole
from daft_vllm.udf.worker.progress import read_progress, read_workers
from daft_vllm.wording import safe_line, shown

SILENT_SECONDS = 5.0
"""A process with an engine that has written nothing for so long is taken for gone. It writes twice a second."""
_JOB = "job"
"""The file in the folder that says what the job is."""


@dataclass(frozen=True)
class EngineLook:
    """One engine, as it was seen.

    Attributes:
        model: the model's name.
        written: when its counters were written, on its own clock, in seconds since 1970.
        is_silent: whether that was more than ``SILENT_SECONDS`` ago.
        figures: its counters.
    """

    model: str
    written: float
    is_silent: bool
    figures: EngineFigures

    @property
    def cached(self) -> float:
        """The share of its prompt tokens that came from the prefix cache."""
        return self.figures.cached_tokens / self.figures.prompt_tokens if self.figures.prompt_tokens else 0.0


@dataclass(frozen=True)
class JobLook:
    """A job, as it was seen.

    Attributes:
        folder: where its counters are.
        model: the name of its model, or an empty text if that isn't known yet.
        output: where its rows go. Empty: unknown.
        pid: the process of the job. None: unknown.
        started: when it began, in seconds since 1970. None: unknown.
        rows: how many rows there are. None: unknown.
        done: rows with an outcome.
        failed: those of them without a value.
        engines: each engine, by the name of its process's file and its number there.
    """

    folder: Path
    model: str = ""
    output: str = ""
    pid: int | None = None
    started: float | None = None
    rows: int | None = None
    done: int = 0
    failed: int = 0
    engines: Mapping[tuple[str, int], EngineLook] = field(default_factory=dict)


@dataclass(frozen=True)
class Rates:
    """What an engine does per second. Tokens are those of complete answers, and of their prompts."""

    rows: float = 0.0
    prompt_tokens: float = 0.0
    completion_tokens: float = 0.0

    def __add__(self, other: Rates) -> Rates:
        return Rates(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(Rates)))


def note_job(folder: str, model: str, *, output: str = "", rows: int | None = None) -> None:
    """Say in a folder of counters what the job is. It holds no secret of the output's URL.

    Args:
        folder: the folder, which this process holds.
        model: the model's name.
        output: where the rows go.
        rows: how many rows there are. None: it isn't known.
    """
    place = shown(output)[1:-1] if output else ""
    job = {"model": safe_line(model), "output": place, "pid": os.getpid(), "started": time.time(), "rows": rows}
    with contextlib.suppress(OSError):
        write_whole(Path(folder) / _JOB, json.dumps(job))


def jobs_here() -> list[Path]:
    """Return the folders of this user's jobs that run on this machine, those that began first at the front.

    Only folders with a note count: they are held already, and looking whether they are disturbs no job.
    """
    found = []
    for prefix in (RUN_PREFIX, PROGRESS_PREFIX):
        for note in Path(tempfile.gettempdir()).glob(f"{prefix}*/{_JOB}"):
            with contextlib.suppress(OSError):
                if note.stat().st_uid == os.geteuid() and is_held(note.parent):
                    found.append((note.stat().st_mtime, note.parent))
    return [folder for _, folder in sorted(found)]


def look_at(folder: Path) -> JobLook:
    """Return what the files in a folder say now."""
    job = _note_in(folder)
    engines: dict[tuple[str, int], EngineLook] = {}
    for path, worker in read_workers(str(folder)).items():
        with contextlib.suppress(OSError, TypeError, KeyError):
            model, written = safe_line(str(worker["model"])), float(worker["written"])
            is_silent = time.time() - path.stat().st_mtime > SILENT_SECONDS
            for number, figures in enumerate(worker["engines"]):
                engines[path.stem, number] = EngineLook(model, written, is_silent, EngineFigures(**figures))
    totals = read_progress(str(folder))
    models = list(dict.fromkeys(one.model for one in engines.values()))
    return JobLook(
        folder=folder,
        model=str(job.get("model") or " and ".join(models)),
        output=str(job.get("output") or ""),
        pid=job.get("pid"),
        started=job.get("started"),
        rows=job.get("rows"),
        done=int(totals["done"]),
        failed=int(totals["failed"]),
        engines=engines,
    )


def rates_between(before: EngineLook | None, now: EngineLook) -> Rates:
    """Return what an engine did per second between two looks, by its own clock. Nothing if there is no time between."""
    if before is None or now.is_silent or now.written <= before.written:
        return Rates()
    seconds = now.written - before.written
    new = now.figures.since(before.figures)
    # A process's next query counts from 0 again.
    return Rates(*(max(0, one) / seconds for one in (new.done, new.prompt_tokens, new.completion_tokens)))


def as_json(job: JobLook, rates: Mapping[tuple[str, int], Rates]) -> dict[str, Any]:
    """Return a job as JSON holds it.

    Args:
        job: the job.
        rates: what each of its engines does per second.
    """
    return {
        "folder": str(job.folder),
        **{name: getattr(job, name) for name in ("model", "output", "pid", "started", "rows", "done", "failed")},
        "engines": [
            {
                "process": process,
                "engine": number,
                "model": engine.model,
                "silent": engine.is_silent,
                **asdict(engine.figures),
                "cached_share": round(engine.cached, 4),
                **{f"{name}_per_second": round(value, 2) for name, value in asdict(rates[process, number]).items()},
            }
            for (process, number), engine in job.engines.items()
        ],
    }


def total_of(rates: Iterable[Rates]) -> Rates:
    """Return the sum."""
    return sum(rates, Rates())


def _note_in(folder: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        note = json.loads((folder / _JOB).read_text(encoding="utf-8"))
        if isinstance(note, dict):
            return note
    return {}
