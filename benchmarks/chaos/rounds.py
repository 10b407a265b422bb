"""Plays rounds: starts a job, lets the fault strike, and looks at what is left."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.chaos.account import Answers, Ground, answers_of, differences
from benchmarks.chaos.faults import NOTHING, PREPARATION, Fault, Mode, Places
from benchmarks.chaos.plan import Planned
from benchmarks.chaos.processes import Running
from benchmarks.chaos.records import Record
from benchmarks.parts.kills import stored, twice_in
from daft_vllm.model_configs import resolve_model

MOST_STARTS = 4
"""After so many starts with a fault, a job is finished without one."""
_MUCH = 0.7
_ACTORS: dict[Mode, int] = {"ray": 1, "cluster": 2}
"""Ray ends the actors that run at the end of a job as a kill does: the folders of their engines stay until the next
start. In the cluster there is one actor on each node."""
MOST_SECONDS = 300.0
"""A job that runs longer hangs, and is killed. A start takes 20 to 60 seconds on two cores, with Ray twice as long."""


class _Ended(NamedTuple):
    running: Running
    struck: bool
    hung: bool
    seconds: float


class Rounds:
    """Plays rounds on jobs of one table. A job that ended goes on in the next round, with the next fault.

    Args:
        folder: an empty folder with a short path, for everything: vLLM has sockets in it.
        rows: of the table.
        model: its name.
    """

    def __init__(self, folder: Path, rows: int, model: str) -> None:
        self.rows = rows
        self.right: Answers = {}
        self._folder = folder
        self._model = Path(resolve_model(model))
        self._temporary = folder / "t"
        self._temporary.mkdir()
        self._ground = Ground(self._temporary)
        self._job = 0
        self._starts = 0
        self._stored = 0
        self._is_open = False

    @property
    def is_open(self) -> bool:
        """Whether there is a job that has ended before all of its rows were answered."""
        return self._is_open

    @property
    def needs_end(self) -> bool:
        """Whether the job has had so many faults, or has so few rows left, that it is to be finished without one."""
        return self._is_open and (self._starts >= MOST_STARTS or self._stored > self.rows * _MUCH)

    def undisturbed(self) -> None:
        """Run a job that nobody disturbs, for the answers that all others have to give.

        Raises:
            RuntimeError: it fails.
        """
        record = self.play(Planned(-1, NOTHING, "driver", 0), seed=0)
        if record.exit_code != 0:
            raise RuntimeError(f"the job fails without any fault: {record.said}")
        rows = answers_of(self._places(NOTHING).output)
        self.right = {key: (value, error) for key, value, error in rows}

    def play(self, planned: Planned, seed: int) -> Record:
        """Play one round, and return what happened."""
        fault, rng = planned.fault, random.Random(planned.seed)
        if not self._is_open:
            self._begin()
        places = self._places(fault)
        if fault.before is not None and not stored(places.store):
            self._run(PREPARATION, "driver", places, rng)
        self._starts += 1
        before, twice, earlier = stored(places.store), twice_in(places.store), self._ground.now()
        undo = fault.before(places, rng) if fault.before is not None else None
        try:
            ended = self._run(fault, planned.mode, places, rng)
        finally:
            if undo is not None:
                undo()
        after = stored(places.store)
        processes = ended.running.left()
        files = self._ground.left()
        code = None if ended.hung else ended.running.process.returncode
        said = ended.running.said()
        outcome = outcome_of(fault, code, said)
        problems = [] if outcome in fault.expected else [f"{outcome}, which is not expected"]
        if code == 0 and fault.strike is not None and not ended.struck:
            outcome, problems = "was done before the fault", []
        if processes:
            problems.append(f"processes are left: {', '.join(name[:60] for name in processes)}")
        # Those of an earlier start go when an engine starts, and not every start comes so far.
        own = [name for name in files if name not in earlier or after > before]
        sockets = [name for name in own if name.startswith("daft-vllm-sockets-")]
        for name in sockets[: _ACTORS.get(planned.mode, 0)]:
            own.remove(name)
        # Daft's: a message between it and its process, which nobody reads after a kill. It has no owner's name.
        own = [name for name in own if not (name.startswith("/dev/shm/psm_") and name in earlier)]
        if own and (code == 0 or outcome.startswith("refused")):
            problems.append(f"files are left: {', '.join(own)}")
        if code == 0 and self.right:
            problems += differences(answers_of(places.output), self.right)
        self._is_open, self._stored = code != 0, after
        return Record(
            number=planned.number,
            seed=seed,
            job=self._job,
            fault=fault.name,
            mode=planned.mode,
            before=before,
            after=after,
            outcome=outcome,
            exit_code=code,
            said=last_line(said),
            seconds=round(ended.seconds, 1),
            twice=twice_in(places.store) - twice,
            left_processes=processes,
            left_files=files,
            problems=problems,
        )

    def _begin(self) -> None:
        """Begin another job: without a store, without an output, and with an empty temporary folder."""
        self._job += 1
        self._starts = 0
        for folder in (*self._folder.glob("job-*"), *self._temporary.iterdir()):
            shutil.rmtree(folder, ignore_errors=True) if folder.is_dir() else folder.unlink(missing_ok=True)
        (self._folder / f"job-{self._job}").mkdir()
        self._ground = Ground(self._temporary)

    def _places(self, fault: Fault) -> Places:
        model = self._folder / "model" / self._model.name
        if fault.own_model and not model.is_dir():
            shutil.copytree(self._model, model)
        folder = self._folder / f"job-{self._job}"
        return Places(folder / "store", folder / "output", model)

    def _run(self, fault: Fault, mode: Mode, places: Places, rng: random.Random) -> _Ended:
        """Start the job, let the fault strike when it is time, and return when the job has ended."""
        folder = places.store.parent
        spec = {
            "rows": self.rows,
            "model": str(places.model if fault.own_model else self._model),
            "store": str(places.store),
            "output": str(places.output),
            "mode": mode,
            "clock": fault.clock,
            "stall_timeout": fault.stall_timeout,
        }
        (folder / "spec.json").write_text(json.dumps(spec), encoding="utf-8")
        log = folder / "log"
        started = time.monotonic()
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.chaos.job", str(folder / "spec.json")],
                env={**os.environ, "TMPDIR": str(self._temporary), "RAY_USAGE_STATS_ENABLED": "0"},
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        running = Running(process, log)
        early = rng.uniform(1, 15) if fault.early and rng.random() < 0.25 else None
        wanted = stored(places.store) + rng.randint(1, max(1, self.rows // 5))
        struck = False
        try:
            while process.poll() is None and (seconds := time.monotonic() - started) < MOST_SECONDS:
                running.look()
                is_time = seconds > early if early is not None else stored(places.store) >= wanted
                if fault.strike is not None and not struck and is_time:
                    with contextlib.suppress(psutil.Error, ProcessLookupError):  # it ended a moment ago
                        struck = fault.strike(running, places, rng)
                time.sleep(0.1)
        except BaseException:  # whoever stops the rounds stops the job
            running.kill()
            raise
        hung = process.poll() is None
        if hung:
            running.kill()
        process.wait()
        return _Ended(running, struck, hung, time.monotonic() - started)


def outcome_of(fault: Fault, code: int | None, said: str) -> str:
    """Return what a job did, by its exit code and by what it said. None: it had to be killed."""
    if code is None:
        return "hung"
    if code == 0:
        return "recovered in place"
    if fault.says and re.search(fault.says, said):
        return "refused with a clear error"
    if "ended, to be resumed" in fault.expected:
        return "ended, to be resumed"
    return "ended with an unclear error"


def last_line(said: str) -> str:
    """Return the last line that isn't empty, at most 500 characters of it."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1][:500] if lines else ""
