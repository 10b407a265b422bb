"""The process of one arm: ``python -m benchmarks.card.stages.worker TASK.json``.

It loads the model once, and runs workload after workload. The rows of a run follow from the time that is left and
from the run before. Each run is on disk as soon as it is over.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.card.stages.sizing import next_rows
from benchmarks.suite.arms import ARMS, EngineSetting, create_arm
from benchmarks.suite.memory import MemoryWatch
from benchmarks.suite.vocabulary import Vocabulary
from benchmarks.suite.worker import Description, Task, Worker, leave


@dataclass(frozen=True)
class Part:
    """One workload of a stage.

    Args:
        workload: its name.
        first: rows of the first run.
        target: seconds that its longest run should take.
        agreed: rows that another arm ran. None: this arm is the first.
    """

    workload: str
    first: int
    target: float
    agreed: int | None = None


@dataclass(frozen=True)
class CardTask:
    """What a stage's process does.

    Args:
        arm: name of the arm.
        model: the model's folder.
        engine_args: arguments of the engine.
        gpus: GPUs of the engine.
        round: number of the round; the texts are others in each.
        until: when it has to be over, by ``time.time()``.
        parts: its workloads.
        lines: file to append events to.
        folder: the results' folder.
    """

    arm: str
    model: str
    engine_args: Mapping[str, Any]
    gpus: int
    round: int
    until: float
    parts: Sequence[Part]
    lines: str
    folder: str

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> CardTask:
        """Read what ``save`` wrote."""
        data = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**data, "parts": [Part(**part) for part in data["parts"]]})


class CardWorker(Worker):
    """Runs the parts of a task, as long as there is time."""

    def __init__(self, task: CardTask) -> None:
        setting = EngineSetting(task.model, task.engine_args, task.gpus)
        description = Description(
            task.arm, task.model, task.engine_args, task.gpus, [], task.lines, str(Path(task.folder) / "logs")
        )
        super().__init__(description, create_arm(task.arm, setting), Vocabulary.of_model(task.model))
        self._task = task

    def run(self) -> None:
        """Open the arm and run every part."""
        load_seconds = self._open()
        if load_seconds is None:
            return
        keeps_engine = ARMS[self._task.arm].keeps_engine
        self._say({"event": "opened", "load_seconds": load_seconds if keeps_engine else None})
        with MemoryWatch(os.getpid()) as memory:
            for position, part in enumerate(self._task.parts):
                if position and self._left() < 1.5 * part.target:
                    self._say({"event": "no time", "workload": part.workload, "left": round(self._left(), 1)})
                    continue
                self._part(part, memory, grows=keeps_engine)
        self._arm.close()

    def _part(self, part: Part, memory: MemoryWatch, *, grows: bool) -> None:
        if grows:
            self._warm_up(part.workload)
        rows: int | None = part.first if grows else part.agreed or part.first
        while rows is not None:
            task = Task(part.workload, rows, self._task.round, f"round-{self._task.round}")
            measured = self._run(task, memory)
            if measured is None:
                return
            left = self._left()
            seconds = measured.seconds
            rows = next_rows(rows, seconds, target=part.target, left=left, agreed=part.agreed) if grows else None
        self._say({"event": "measured", "workload": part.workload})

    def _left(self) -> float:
        return self._task.until - time.time()


def main() -> None:
    """Run the task named on the command line."""
    try:
        CardWorker(CardTask.load(Path(sys.argv[1]))).run()
    except Exception:
        traceback.print_exc()
        leave(1)
    leave(0)


if __name__ == "__main__":
    main()
