"""Ends vLLM's processes: on request, and when the process that started them dies.

vLLM 0.32 itself does not end its core when the parent is killed (SIGKILL): it would keep the GPU's memory for ever.
"""

from __future__ import annotations

import concurrent.futures.thread
import contextlib
import ctypes
import multiprocessing
import os
import re
import signal
from collections.abc import Sequence

import psutil

from daft_vllm.errors import EngineClosedError

OWNER_PID = "DAFT_VLLM_OWNER_PID"
KILL_SECONDS = 2.0
"""How long to wait until killed processes are gone."""
_OTHERS = re.compile(r"resource_tracker|daft\.execution\.udf_worker|daft_vllm\.engine\.(media|constraints)")
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def exit_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies. Does nothing outside an engine of daft-vllm.

    The kernel acts when the thread that started this process ends. For the core that is the engine's thread, which
    lives as long as the engine.
    """
    owner = os.environ.get(OWNER_PID)
    parent = multiprocessing.parent_process()
    if owner is None or int(owner) == os.getpid() or parent is None:
        return
    exit_with_parent_thread()
    if not parent.is_alive():  # it died before the line above
        os.kill(os.getpid(), signal.SIGKILL)


def exit_with_parent_thread() -> None:
    """Ask the kernel to kill this process when the parent's *thread* that started it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def kill_processes(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Kill ``processes`` and their descendants and wait until they are gone. Return those that are not, in time."""
    to_kill = list(processes)
    for process in processes:
        with contextlib.suppress(psutil.Error):
            to_kill += process.children(recursive=True)
    for process in to_kill:
        with contextlib.suppress(psutil.Error):
            process.kill()
    return psutil.wait_procs(to_kill, timeout=KILL_SECONDS)[1]


def child_processes() -> list[psutil.Process]:
    """Return this process's descendants, without Daft's workers and Python's resource tracker."""
    found = []
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if not _OTHERS.search(" ".join(process.cmdline())):
                found += [process, *process.children(recursive=True)]
    return found


class NewProcesses:
    """The processes that one start of vLLM has started.

    Attributes:
        own: those that are known to be of this start. Empty: vLLM starts its core itself.
    """

    def __init__(self) -> None:
        self.own: list[psutil.Process] = []
        self._before = child_processes()

    def kill(self) -> None:
        """Kill them and their descendants, and wait until they are gone.

        If none is known, they are all ``child_processes`` that are newer than this object. Callable from any thread.
        """
        kill_processes(self.own or [process for process in child_processes() if process not in self._before])


def raise_if_python_ends() -> None:
    """Give up if the main thread has ended, and Python waits for the threads of executors in order to exit.

    Raises:
        EngineClosedError: it has. vLLM needs an executor, and Python no longer lets any of them start something.
    """
    if getattr(concurrent.futures.thread, "_shutdown", False):  # Python has no public name for it
        raise EngineClosedError(
            "Python is ending: the main thread was interrupted, or did not wait for the thread with the query. Call "
            "thread.join() at the end of the script."
        )
