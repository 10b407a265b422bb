"""Live counters from worker processes to whoever watches, through small files in one folder."""

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
    """Writes the counters that ``read`` returns to a file of its own in ``folder``, as long as that is there."""

    def __init__(self, folder: str, read: Callable[[], Mapping[str, float]]) -> None:
        self._path = Path(folder) / f"{os.getpid()}-{uuid.uuid4().hex}.json"
        self._read = read
        self._thread = threading.Thread(target=self._run, name="daft-vllm-progress", daemon=True)
        self._thread.start()

    def write(self) -> None:
        """Write the counters now. A folder that is gone means that nobody watches any more."""
        with contextlib.suppress(OSError):
            part = self._path.with_suffix(f".{threading.get_ident()}.part")
            part.write_text(json.dumps(self._read()), encoding="utf-8")
            part.replace(self._path)

    def _run(self) -> None:
        while self._path.parent.is_dir():
            time.sleep(WRITE_SECONDS)
            self.write()


def read_progress(folder: str) -> dict[str, float]:
    """Return the sum of every worker's counters in ``folder``, by the names of ``EngineStats``, and ``workers``."""
    total = dict.fromkeys([*EngineStats.names(), "workers"], 0.0)
    for path in Path(folder).glob("*.json"):
        with contextlib.suppress(OSError, ValueError):
            for name, value in json.loads(path.read_text(encoding="utf-8")).items():
                total[name] += value
            total["workers"] += 1
    return total
