"""The processes of a job: which is which, and which are left."""

from __future__ import annotations

import contextlib
import subprocess
import time
from pathlib import Path

import psutil

LEFT_SECONDS = 8.0
"""How long the processes of a job that has ended may take until they are gone. Ray's take some seconds."""


class Running:
    """A job that runs, with every process that it ever started.

    Args:
        process: the job's first process.
        log: the file that gets what it says.
    """

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log
        self._seen: dict[int, psutil.Process] = {}
        self.look()

    def look(self) -> list[psutil.Process]:
        """Return the processes that run now, and remember them."""
        found: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):
            first = psutil.Process(self.process.pid)
            found = [first, *first.children(recursive=True)]
        for one in found:
            self._seen[one.pid] = one
        return found

    def kill(self) -> None:
        """Kill the job with all of its processes. It is waited for elsewhere: its exit code can be asked for once."""
        for one in self.look():
            with contextlib.suppress(psutil.Error):
                one.kill()

    def cores(self) -> list[psutil.Process]:
        """Return vLLM's cores."""
        return [one for one in self.look() if name_of(one).startswith("VLLM::Engine")]

    def workers(self) -> list[psutil.Process]:
        """Return the processes that Daft started for its functions: its own, or actors of Ray."""
        return [one for one in self.look() if "udf_worker" in name_of(one) or name_of(one).startswith("ray::UDFActor")]

    def raylets(self) -> list[psutil.Process]:
        """Return the processes of Ray's nodes below which a core runs."""
        parents = {parent.pid for core in self.cores() for parent in core.parents()}
        return [one for one in self.look() if one.pid in parents and "raylet/raylet" in name_of(one)]

    def left(self) -> list[str]:
        """Return the names of the processes that are still there after a while, and kill them."""
        deadline = time.monotonic() + LEFT_SECONDS
        while (alive := self._alive()) and time.monotonic() < deadline:
            time.sleep(0.2)
        names = [name_of(one) for one in alive]
        for one in alive:
            with contextlib.suppress(psutil.Error):
                one.kill()
        return names

    def _alive(self) -> list[psutil.Process]:
        alive = []
        for one in self._seen.values():
            with contextlib.suppress(psutil.Error):
                if one.is_running() and one.status() != psutil.STATUS_ZOMBIE:
                    alive.append(one)
        return alive

    def said(self) -> str:
        """Return what it has written to its screen."""
        return self.log.read_text(encoding="utf-8", errors="replace")


def name_of(process: psutil.Process) -> str:
    """Return a process's title, or its command. Empty: it is gone."""
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline()).strip() or process.name()
    return ""
