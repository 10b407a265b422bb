"""Child processes with a time limit, of which nothing is left when they are over."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from benchmarks.suite.runner import ROOT

POLL_SECONDS = 0.1
_SET_CHILD_SUBREAPER, _SET_DEATH_SIGNAL = 36, 1
"""``PR_SET_CHILD_SUBREAPER`` and ``PR_SET_PDEATHSIG`` of Linux's ``prctl``."""


class Ended(NamedTuple):
    """How a child process ended.

    Attributes:
        status: its exit status. None: it was killed.
        why: why it was killed. Empty: it ended by itself.
    """

    status: int | None
    why: str = ""


class Stop:
    """Whether the run is to end early, and why. A signal handler sets it."""

    def __init__(self) -> None:
        self.why = ""
        self.signal = 0

    def on_signal(self, number: int, frame: object) -> None:
        """Note the signal; the loop that waits for a child process sees it."""
        self.signal = number
        self.why = f"stopped by {signal.Signals(number).name}"


def adopt_orphans() -> None:
    """Make this process the parent of each descendant whose own parent ends, so that ``run_child`` finds it."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def run_child(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    log: Path,
    lines: Path,
    until: float,
    stop: Stop,
    on_line: Callable[[dict[str, Any]], None],
) -> Ended:
    """Run a command until it ends, its time is over, or the run stops; then kill all that it started.

    Args:
        command: what to run, in the root of the repository.
        environment: additional environment variables.
        log: file for what it prints.
        lines: file to which it appends JSON objects, one a line; what is there already is removed.
        until: when it is killed, by ``time.monotonic()``.
        stop: ends it early.
        on_line: called with each object as soon as it is there.
    """
    lines.unlink(missing_ok=True)
    before = set(_descendants())
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    libc = ctypes.CDLL(None)
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env={**inherited, **environment},
            cwd=ROOT,
            start_new_session=True,
            # If this process is killed itself, the kernel kills the child.
            preexec_fn=lambda: libc.prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0),
        )
    seen, why = 0, ""
    try:
        while True:
            over = process.poll() is not None
            seen = _read(lines, seen, on_line)
            why = "" if over else stop.why or ("its time was over" if time.monotonic() >= until else "")
            if over or why:
                break
            time.sleep(POLL_SECONDS)
    finally:
        _end(process, before)
        _read(lines, seen, on_line)
    return Ended(None if why else process.returncode, why)


def _read(lines: Path, seen: int, on_line: Callable[[dict[str, Any]], None]) -> int:
    if not lines.is_file():
        return seen
    found = lines.read_text(encoding="utf-8").split("\n")[seen:-1]  # what has no end yet is not whole
    for line in found:
        on_line(json.loads(line))
    return seen + len(found)


def _end(process: subprocess.Popen[bytes], before: set[psutil.Process]) -> None:
    """Kill the child and all that it started, also what it has left behind: ``adopt_orphans``."""
    for _ in range(40):
        with contextlib.suppress(psutil.Error):
            psutil.Process(process.pid).kill()  # first: it starts others
        left = [one for one in _descendants() if one not in before and one.pid != process.pid]
        for one in left:
            with contextlib.suppress(psutil.Error):
                one.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=1)  # a driver that hangs keeps a process for longer
        for one in left:
            with contextlib.suppress(psutil.Error, ChildProcessError):
                os.waitpid(one.pid, os.WNOHANG)
        if not left and process.returncode is not None:
            return
        time.sleep(0.05)


def _descendants() -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return psutil.Process().children(recursive=True)
    return []
