"""What runs in a core's process that was started early: import, wait, become the core."""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import pickle
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import spawn
from multiprocessing.connection import Connection

from daft_vllm.engine.setup.environment import set_variables
from daft_vllm.engine.setup.guardian import die_with_thread

SET_BY_VLLM = "VLLM_OMP_NUM_THREADS_SET_BY_VLLM"
"""With "1", vLLM 0.32 has chosen ``OMP_NUM_THREADS``: for the load of a model in the core's process, on GPUs."""


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Let Python's garbage collector rest: among the objects of an import it finds nothing, and takes a fifth of it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def set_aside() -> Iterator[None]:
    """Let collections inside leave alone what is there now: a million objects of imports, which stay for good."""
    first = gc.get_freeze_count() == 0
    if first:
        gc.freeze()
    try:
        yield
    finally:
        if first:
            gc.unfreeze()


def main(modules: Sequence[str], parent: int, pipe: int, answers: int, tracker: int) -> None:
    """Import ``modules``, call what there is to call, and do what ``multiprocessing`` says next on the same pipe.

    Ends without a word if the parent does, or wants this process no more. What can't be imported now raises when vLLM
    needs it.

    Args:
        modules: names of modules.
        parent: the parent's process id.
        pipe: file descriptor of what comes from the parent: functions to call, pickled, and at last its environment.
        answers: file descriptor for what they return.
        tracker: file descriptor of the resource tracker.
    """
    die_with_thread()
    if os.getppid() != parent:
        os._exit(0)
    find_title()
    with no_collection():
        for name in modules:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    gc.freeze()  # as in set_aside, for good
    orders, replies = Connection(pipe, writable=False), Connection(answers, readable=False)
    try:
        while isinstance(order := orders.recv(), bytes):
            replies.send(_called(order))
    except (EOFError, OSError):
        os._exit(0)
    replies.close()
    _take_over(order)
    try:
        spawn.spawn_main(tracker_fd=tracker, pipe_handle=pipe)
    except SystemExit as end:  # always
        # All is over and said. To take torch's and vLLM's modules apart would take another two seconds.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else 1)


def find_title() -> None:
    """Let ``setproctitle`` find the memory of this process's title, by which ``ps`` and ``nvidia-smi`` show it.

    Version 1.3 looks for it when it is first used, next to the first environment variable: in vain if that has changed.
    """
    with contextlib.suppress(ImportError):
        import setproctitle

        setproctitle.getproctitle()


def _called(order: bytes) -> tuple[bool, bytes | str]:
    """Return whether a pickled function returned, and what: pickled, or the traceback."""
    try:
        return True, pickle.dumps(pickle.loads(order)())
    except Exception:
        return False, traceback.format_exc()


def _take_over(environment: Mapping[str, str | None]) -> None:
    set_variables(environment)
    if "torch" in sys.modules and environment.get(SET_BY_VLLM) == "1":
        import torch

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
