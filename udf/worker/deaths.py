"""What is known about a process of Daft that was killed while it answered rows."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import psutil

from daft_vllm.engine.setup.guardian import kill_processes

_DEATH = re.compile(
    r"UDF process (closed the connection|has terminated)|BrokenPipeError|ConnectionResetError"
    r"|ActorDiedError|ActorUnavailableError|actor died unexpectedly|WorkerCrashedError"
    r"|NodeDiedError|ObjectLostError|ObjectReconstructionFailed\w*Error|OwnerDiedError"
)
"""What Daft 0.7 and Ray say if a process is gone that answers rows, or a node with partitions that were finished."""


def is_death(error: BaseException) -> bool:
    """Whether a query failed because one of its processes was killed, or a node of the cluster is gone."""
    return _DEATH.search(f"{type(error).__name__}: {error}") is not None


def memory_kills() -> int:
    """Return how many processes the kernel of this machine has killed for lack of memory since it was started."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines():
            name, _, number = line.partition(" ")
            if name == "oom_kill":
                return int(number)
    return 0


def why_killed(kills_before: int) -> str:
    """Return why a process was killed, as far as that can be known.

    Args:
        kills_before: what ``memory_kills`` returned before.
    """
    if memory_kills() > kills_before:
        return "the kernel has killed a process on this machine for lack of memory"
    return "something has killed it: a limit of memory of a container or a job, for example, or somebody"


def kill_udf_processes() -> None:
    """Kill the processes of Daft that answer this process's queries, and all that they have started."""
    found = []
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if "daft.execution.udf_worker" in process.cmdline():
                found.append(process)
    kill_processes(found)
