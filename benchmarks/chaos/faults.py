"""The faults: where each strikes, and what a job may do about it."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import psutil

from benchmarks.chaos.processes import Running
from daft_vllm.engine.store.segments import segments_of

Outcome = Literal["recovered in place", "ended, to be resumed", "refused with a clear error"]
Mode = Literal["driver", "process", "ray", "cluster"]
STALL_SECONDS = 8.0
PAUSE_SECONDS = 3.0


class Places(NamedTuple):
    """The folders of a job.

    Attributes:
        store: the store.
        output: the folder of the output.
        model: a copy of the model, which may be damaged.
    """

    store: Path
    output: Path
    model: Path


Undo = Callable[[], None]


@dataclass(frozen=True)
class Fault:
    """One kind of fault.

    Attributes:
        name: its name in the table.
        modes: where the engine runs: in the job's own process, in one that Daft starts, or on Ray.
        expected: what a job may do about it.
        strike: what happens while rows are answered. It returns whether it found what it strikes. None: nothing.
        before: what happens before the job starts; it returns what takes it back. None: nothing.
        says: a pattern that the error of a refused job has.
        own_model: whether the job loads ``Places.model``.
        early: whether it strikes while the model loads, once in four times.
        clock: seconds by which the clock jumps.
        stall_timeout: as in ``prompt()``.
    """

    name: str
    modes: tuple[Mode, ...]
    expected: tuple[Outcome, ...]
    strike: Callable[[Running, Places, random.Random], bool] | None = None
    before: Callable[[Places, random.Random], Undo] | None = None
    says: str = ""
    own_model: bool = False
    early: bool = False
    clock: float = 0.0
    stall_timeout: float = 120.0


def _kill_core(running: Running, places: Places, rng: random.Random) -> bool:
    return _killed(running.cores())


def _kill_worker(running: Running, places: Places, rng: random.Random) -> bool:
    return _killed(running.workers())


def _kill_raylet(running: Running, places: Places, rng: random.Random) -> bool:
    return _killed(running.raylets())


def _killed(processes: Sequence[psutil.Process]) -> bool:
    for one in processes:
        one.kill()
    return bool(processes)


def _kill_driver(running: Running, places: Places, rng: random.Random) -> bool:
    running.process.kill()
    return True


def _kill_all(running: Running, places: Places, rng: random.Random) -> bool:
    running.kill()
    return True


def _interrupt(running: Running, places: Places, rng: random.Random) -> bool:
    running.process.send_signal(signal.SIGINT)
    return True


def _stop_core(running: Running, places: Places, rng: random.Random) -> bool:
    cores = running.cores()
    for core in cores:
        core.suspend()
    return bool(cores)


def _pause_core(running: Running, places: Places, rng: random.Random) -> bool:
    cores = running.cores()
    for core in cores:
        core.suspend()
    time.sleep(PAUSE_SECONDS)
    for core in cores:
        core.resume()
    return bool(cores)


def _fill_disk(running: Running, places: Places, rng: random.Random) -> bool:
    """Let the file of the store grow by a few bytes more, then fail: a frame is cut off."""
    size = max(path.stat().st_size for path in segments_of(places.store)) + rng.randint(1, 2000)
    for worker in running.workers() or [psutil.Process(running.process.pid)]:
        resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    return True


def _damage_store(places: Places, rng: random.Random) -> Undo:
    """Cut a file of the store at a random byte, or change one byte."""
    path = rng.choice(segments_of(places.store))
    size = path.stat().st_size
    with path.open("r+b") as file:
        if rng.random() < 0.5:
            file.truncate(rng.randrange(size))
        else:
            place = rng.randrange(size)
            file.seek(place)
            byte = file.read(1)[0]
            file.seek(place)
            file.write(bytes([byte ^ (1 << rng.randrange(8))]))
    return lambda: None


def _protect(folder: Path) -> Undo:
    """Let nobody write to a folder. Root may, whatever the mode is, so that its attribute is set instead."""
    if os.geteuid() != 0:
        folder.chmod(0o500)
        return lambda: folder.chmod(0o700)
    subprocess.run(["chattr", "+i", str(folder)], check=True, capture_output=True)

    def undo() -> None:
        subprocess.run(["chattr", "-i", str(folder)], check=True)

    return undo


def _protect_store(places: Places, rng: random.Random) -> Undo:
    return _protect(places.store)


def _protect_output(places: Places, rng: random.Random) -> Undo:
    places.output.mkdir(exist_ok=True)
    return _protect(places.output)


def _damage_model(places: Places, rng: random.Random) -> Undo:
    """Cut the weights, or break the config."""
    name = rng.choice(["model.safetensors", "config.json", "tokenizer.json"])
    path = places.model / name
    whole = path.with_name(f"{name}.whole")
    path.rename(whole)
    shutil.copyfile(whole, path)
    os.truncate(path, rng.randrange(path.stat().st_size))
    # Out of the folder: what is in it belongs to the model.
    aside = places.model.parent / whole.name
    whole.rename(aside)
    return lambda: os.replace(aside, path)


_ENDS: tuple[Outcome, ...] = ("ended, to be resumed",)
_LIVES: tuple[Outcome, ...] = ("recovered in place",)
_REFUSES: tuple[Outcome, ...] = ("refused with a clear error",)
_DIES: Outcome = "ended, to be resumed"

FAULTS: tuple[Fault, ...] = (
    Fault("core killed", ("driver", "process"), _LIVES, _kill_core),
    Fault("core stopped", ("driver", "process"), _LIVES, _stop_core, stall_timeout=STALL_SECONDS),
    Fault("core paused", ("driver",), _LIVES, _pause_core, stall_timeout=STALL_SECONDS * 4),
    Fault("Daft's process killed", ("process",), _ENDS, _kill_worker),
    Fault("driver killed", ("driver", "process"), _ENDS, _kill_driver, early=True),
    Fault("whole job killed", ("driver", "process"), _ENDS, _kill_all, early=True),
    Fault("Ctrl-C", ("driver", "process"), _ENDS, _interrupt, early=True),
    Fault("disk full", ("driver", "process"), _REFUSES, _fill_disk, says=r"StoreError.*can't be written to the store"),
    Fault("store read-only", ("driver",), _REFUSES, before=_protect_store, says="StoreError"),
    Fault("output read-only", ("driver",), _REFUSES, before=_protect_output, says="(?i)permi|not permitted|denied"),
    Fault("store damaged", ("driver",), _LIVES, before=_damage_store),
    Fault(
        "model damaged",
        ("driver",),
        _REFUSES,
        before=_damage_model,
        says=r"(StoreError|ModelError|OptionError|EngineStartError)",
        own_model=True,
    ),
    Fault("clock jumps ahead", ("driver",), _LIVES, clock=86_400.0),
    Fault("clock jumps back", ("driver",), _LIVES, clock=-86_400.0),
    Fault("Ray actor killed", ("ray",), (*_LIVES, _DIES), _kill_worker),
    Fault("raylet killed", ("cluster",), (*_LIVES, _DIES), _kill_raylet),
)
"""All faults. Hostile rows are in each job's table (``job.HOSTILE``)."""

NOTHING = Fault("(none)", ("driver",), _LIVES)
"""A job that is let alone."""
PREPARATION = Fault("(preparation)", ("driver",), _ENDS, _kill_all)
"""A job that is killed so that there is a store for the faults that come before a start."""
