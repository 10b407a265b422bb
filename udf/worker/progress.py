"""Passes live counters from worker processes to a process that watches, through small files in one folder."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from daft_vllm.engine import EngineStats

WRITE_SECONDS = 0.5
"""How often a worker writes its counters."""


class ProgressWriter:
    """Writes the counters that ``read`` returns to a file of its own in ``folder``, until its file is removed.

    Args:
        folder: the folder.
        read: returns the counters.
        look: called with the file's path as often as the counters are written, until it returns True.
    """

    def __init__(
        self, folder: str, read: Callable[[], Mapping[str, float]], look: Callable[[Path], bool] = lambda _: True
    ) -> None:
        self._look = look
        self._path = Path(folder) / f"{os.getpid()}-{uuid.uuid4().hex}.json"
        self._read = read
        self._lock = threading.Lock()
        self._written = False
        self.write()
        self._thread = threading.Thread(target=self._run, name="daft-vllm-progress", daemon=True)
        self._thread.start()

    def write(self) -> None:
        """Write the counters now. If the file is gone, nobody watches any more, and nothing is written."""
        # Read and write under one lock: older counters must not replace newer ones.
        with self._lock, contextlib.suppress(OSError):
            if self._written and self.is_over:
                return
            self._written = True
            part = self._path.with_suffix(".part")
            part.write_text(json.dumps(self._read()), encoding="utf-8")
            part.replace(self._path)

    @property
    def is_over(self) -> bool:
        """Whether the file is gone: whoever watched the query has removed it."""
        return not self._path.exists()

    def _run(self) -> None:
        seen = False
        while not self.is_over:
            seen = seen or self._look(self._path)
            time.sleep(WRITE_SECONDS)
            self.write()


def read_progress(*folders: str) -> dict[str, float]:
    """Return the counters of all workers in ``folders``, named as in ``EngineStats``, and the number of ``workers``.

    They are sums, except ``mean_running``, which is the mean over all steps, and ``peak_running``, the highest.
    """
    total = dict.fromkeys([*EngineStats.names(), "workers"], 0.0)
    for path in (path for folder in folders for path in Path(folder).glob("*.json")):
        with contextlib.suppress(OSError, ValueError):
            for name, value in json.loads(path.read_text(encoding="utf-8")).items():
                total[name] = max(total[name], value) if name == "peak_running" else total[name] + value
            total["workers"] += 1
    total["mean_running"] = total["running_sum"] / total["steps"] if total["steps"] else 0.0
    return total
