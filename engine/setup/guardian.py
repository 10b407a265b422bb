"""Ends vLLM's processes: when it is time, and when the process that started them dies.

Nothing else in vLLM 0.32 ends the core when its parent is killed outright: it would keep the GPU's memory for ever.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import re
import signal
from collections.abc import Sequence

import psutil

OWNER_PID = "DAFT_VLLM_OWNER_PID"
KILL_SECONDS = 2.0
"""How long to wait for killed processes to be gone."""
_OTHERS = re.compile(r"resource_tracker|daft\.execution\.udf_worker")
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies. Does nothing outside an engine of daft-vllm.

    For the core, the thread that started it is the engine's own, which lives as long as the engine.
    """
    owner = os.environ.get(OWNER_PID)
    parent = multiprocessing.parent_process()
    if owner is None or int(owner) == os.getpid() or parent is None:
        return
    die_with_thread()
    if not parent.is_alive():  # it died before the line above
        os.kill(os.getpid(), signal.SIGKILL)


def die_with_thread() -> None:
    """Ask the kernel to kill this process when the *thread* of its parent that started it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def kill_processes(processes: Sequence[psutil.Process]) -> None:
    """Kill ``processes`` and their descendants and wait until they are gone."""
    doomed = list(processes)
    for process in processes:
        with contextlib.suppress(psutil.Error):
            doomed += process.children(recursive=True)
    for process in doomed:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(doomed, timeout=KILL_SECONDS)


def child_processes() -> list[psutil.Process]:
    """Return this process's descendants, without those that are Daft's, and Python's resource tracker."""
    found = []
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if not _OTHERS.search(" ".join(process.cmdline())):
                found += [process, *process.children(recursive=True)]
    return found


def kill_new_processes(before: Sequence[psutil.Process]) -> None:
    """Kill those of ``child_processes`` that were not there ``before``, and wait until they are gone."""
    kill_processes([process for process in child_processes() if process not in before])
