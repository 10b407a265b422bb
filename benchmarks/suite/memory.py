"""Measures the peak memory of a process and all its child processes."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import psutil

SAMPLE_SECONDS = 0.5


def high_water_mb(pid: int) -> float:
    """Return the largest resident set that the process has had, in MiB; 0 if it is gone.

    Not ``ru_maxrss``: a child inherits its parent's over fork and exec.
    """
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return 0.0


def tree_high_water_mb(pid: int) -> float:
    """Return the sum of ``high_water_mb`` over the process and its descendants. Shared pages count for each."""
    pids = [pid]
    with contextlib.suppress(psutil.Error):
        pids += [child.pid for child in psutil.Process(pid).children(recursive=True)]
    return sum(high_water_mb(one) for one in pids)


class MemoryWatch:
    """Samples a process tree regularly, so that processes that end early are counted too."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._peak = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory", daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def peak_mb(self) -> float:
        """Return the largest sum seen so far."""
        self._peak = max(self._peak, tree_high_water_mb(self._pid))
        return self._peak

    def _run(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            self.peak_mb()
