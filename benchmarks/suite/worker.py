"""The process of one arm: ``python -m benchmarks.suite.worker DESCRIPTION.json``.

It opens the arm, warms it up, runs its jobs, and appends one JSON line per event to a file that the runner reads.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.suite.arms import ARMS, Arm, EngineSetting, Measured, NotExpressible, create_arm
from benchmarks.suite.memory import MemoryWatch
from benchmarks.suite.records import RunKey, add_answers
from benchmarks.suite.vocabulary import Vocabulary
from benchmarks.suite.workloads import make_job

WARM_ROWS = 4
REASON_CHARACTERS = 500
COLD_WORKLOAD = "instructions"
"""The workload that ``cold`` runs."""


@dataclass(frozen=True)
class Task:
    """One job of a description."""

    workload: str
    rows: int
    round: int
    seed: str


@dataclass(frozen=True)
class Description:
    """Everything that a worker needs to know.

    Args:
        arm: name of the arm.
        model: model of the engine; its tokenizer also serves to make the prompts.
        engine_args: arguments of the engine.
        gpus: GPUs of the engine.
        tasks: the jobs, in order.
        lines: file to append events to.
        folder: where answers are stored.
        cold: run one job without opening or warming up first, and exit as a script does.
    """

    arm: str
    model: str
    engine_args: Mapping[str, Any]
    gpus: int
    tasks: Sequence[Task]
    lines: str
    folder: str
    cold: bool = False

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Description:
        """Read what ``save`` wrote."""
        data = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**data, "tasks": [Task(**task) for task in data["tasks"]]})


class Worker:
    """Runs a description on an arm."""

    def __init__(self, description: Description, arm: Arm, vocabulary: Vocabulary) -> None:
        self._description = description
        self._arm = arm
        self._vocabulary = vocabulary

    def run(self) -> None:
        """Open, warm up and run every task; a task that fails is an event, and the next one is tried."""
        load_seconds = self._open()
        if load_seconds is None:
            return
        self._say({"event": "opened", "load_seconds": load_seconds})
        with MemoryWatch(os.getpid()) as memory:
            if ARMS[self._description.arm].keeps_engine:
                for workload in dict.fromkeys(task.workload for task in self._description.tasks):
                    self._warm_up(workload)
            for task in self._description.tasks:
                self._run(task, memory)
        self._arm.close()

    def _open(self) -> float | None:
        """Open the arm, and return the seconds that it took. None: it can't run, which is reported."""
        try:
            return self._arm.open()
        except NotExpressible as e:
            self._say({"event": "cannot", "why_not": str(e)})
            return None

    def run_cold(self) -> None:
        """Run the one task; the runner times the process."""
        task = self._description.tasks[0]
        job = make_job(COLD_WORKLOAD, task.rows, task.seed, self._vocabulary)
        with MemoryWatch(os.getpid()) as memory:
            self._report(task, self._arm.run(job), memory)
        self._arm.close()

    def _warm_up(self, workload: str) -> None:
        try:
            self._arm.run(make_job(workload, WARM_ROWS, "warm-up", self._vocabulary))
        except NotExpressible:
            pass  # the run itself reports it
        except Exception:
            traceback.print_exc()

    def _run(self, task: Task, memory: MemoryWatch) -> Measured | None:
        """Run a task and report it. None: it failed, which is reported too."""
        job = make_job(task.workload, task.rows, task.seed, self._vocabulary)
        try:
            measured = self._arm.run(job)
            self._report(task, measured, memory)
            return measured
        except NotExpressible as e:
            self._say({"event": "failed", **asdict(task), "why_not": str(e)})
        except Exception as e:
            traceback.print_exc()
            self._say({"event": "failed", **asdict(task), "why_not": _reason(e)})
        return None

    def _report(self, task: Task, measured: Measured, memory: MemoryWatch) -> None:
        if len(measured.texts) != task.rows:
            raise ValueError(f"{task.rows} rows went in and {len(measured.texts)} texts came out")
        digests = [None if text is None else hashlib.sha256(text.encode()).hexdigest() for text in measured.texts]
        key = RunKey(self._description.arm, task.workload, task.round, task.rows)
        add_answers(Path(self._description.folder), key, digests)
        figures = {name: value for name, value in measured._asdict().items() if name != "texts"}
        figures["failed_rows"] = sum(text is None for text in measured.texts)
        figures["peak_rss_mb"] = round(memory.peak_mb(), 1)
        self._say({"event": "ran", **asdict(task), **figures})

    def _say(self, event: Mapping[str, Any]) -> None:
        with Path(self._description.lines).open("a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")


def _reason(error: Exception) -> str:
    """Return an error's type and the last line of its message, which is the cause if it quotes a remote traceback."""
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", str(error)).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:REASON_CHARACTERS]


def main() -> None:
    """Run the description named on the command line."""
    description = Description.load(Path(sys.argv[1]))
    vocabulary = Vocabulary.of_model(description.model)
    setting = EngineSetting(description.model, description.engine_args, description.gpus)
    worker = Worker(description, create_arm(description.arm, setting), vocabulary)
    if description.cold:
        worker.run_cold()
        return
    try:
        worker.run()
    except Exception:
        traceback.print_exc()
        leave(1)
    leave(0)


def leave(status: int) -> None:
    """Kill all child processes and exit: nothing after the last job is measured, and some peers never end."""
    sys.stdout.flush()
    sys.stderr.flush()
    for process in psutil.Process().children(recursive=True):
        process.kill()
    os._exit(status)


if __name__ == "__main__":
    main()
