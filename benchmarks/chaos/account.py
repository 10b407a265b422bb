"""What a job has to have when it ends: each row once, the right answers, and nothing left behind."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from daft_vllm.folders import SHARED_MEMORY

Answers = dict[int, tuple[Any, Any]]
CLEANING_SECONDS = 5.0
"""How long what a job leaves may take until it is removed."""
_STAYS = ("torchinductor_", "ray", "tmp", ".ray")
"""Beginnings of names that others than daft-vllm and vLLM leave in the temporary folder: torch and Ray their folders,
and Daft the socket of a process that was killed."""


def answers_of(output: Path) -> list[tuple[int, Any, Any]]:
    """Return each row's key, its value, and the code of its error."""
    rows = pq.read_table(output).to_pylist()
    return [(row["id"], row["a"]["value"], (row["a"]["error"] or "").split(":")[0]) for row in rows]


def differences(found: Iterable[tuple[int, Any, Any]], right: Answers) -> list[str]:
    """Return in words what is wrong with a job's rows, compared with those of a job that nobody disturbed."""
    rows = list(found)
    counts = Counter(key for key, _, _ in rows)
    wrong = [key for key, value, error in rows if key in right and right[key] != (value, error)]
    problems = {
        "missing": [key for key in right if key not in counts],
        "twice": [key for key, count in counts.items() if count > 1],
        "unknown": [key for key in counts if key not in right],
        "other answers": sorted(set(wrong)),
    }
    return [f"{len(keys)} rows {name}, such as {keys[0]}" for name, keys in problems.items() if keys]


class Ground:
    """The temporary folder of the jobs, and this machine's shared memory.

    Args:
        folder: the temporary folder, empty.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._before = set(os.listdir(SHARED_MEMORY))

    def left(self) -> list[str]:
        """Return what is still there after a while: Python's resource tracker removes semaphores after its process."""
        deadline = time.monotonic() + CLEANING_SECONDS
        while (found := self.now()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return found

    def now(self) -> list[str]:
        """Return what is there now and was not, without what others leave, and logs kept after failures."""
        files = [name for name in os.listdir(self.folder) if not name.startswith(_STAYS) and not name.endswith(".log")]
        memory = sorted(set(os.listdir(SHARED_MEMORY)) - self._before)
        return [*sorted(files), *(f"/dev/shm/{name}" for name in memory)]
