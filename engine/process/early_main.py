"""The program of a process that is started early: it imports modules, waits, and becomes vLLM's core."""

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
from daft_vllm.engine.setup.guardian import exit_with_parent_thread

SET_BY_VLLM = "VLLM_OMP_NUM_THREADS_SET_BY_VLLM"
"""The value "1" means that vLLM 0.32 has chosen ``OMP_NUM_THREADS``, to load a model in the core's process, on GPUs."""


_FEW = 1_000
"""Fewer frozen objects are no sign of ``gc.freeze()``: Python 3.12.1 starts with 375, 3.11 and 3.13 with none."""


@contextlib.contextmanager
def gc_disabled() -> Iterator[None]:
    """Turn Python's garbage collector off inside: in an import it finds nothing, and takes a fifth of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def gc_frozen() -> Iterator[None]:
    """Let garbage collections inside skip the objects that exist now: a million from imports, which stay for good."""
    first = gc.get_freeze_count() < _FEW
    if first:
        gc.freeze()
    try:
        yield
    finally:
        if first:
            gc.unfreeze()


def main(modules: Sequence[str], parent: int, pipe: int, answers: int, tracker: int, log: int | None = None) -> None:
    """Import ``modules``, call the functions that the parent sends, then run what ``multiprocessing`` sends.

    The parent sends all of it on the same pipe. This process ends silently if the parent ends, or no longer needs it.
    If a module can't be imported, the error appears when vLLM imports it.

    Args:
        modules: names of modules.
        parent: the parent's process id.
        pipe: file descriptor of what the parent sends: pickled functions to call, then changes of the environment, then
            what ``multiprocessing`` has for a new process.
        answers: file descriptor for what the functions return.
        tracker: file descriptor of the resource tracker.
        log: file descriptor of the file that gets this process's stdout and stderr. None: they are the parent's.
    """
    if log is not None:
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # if it dies, the last line is there
    os.setpgrp()  # Ctrl-C in a terminal or a notebook is for the parent, which ends this process or goes on with it
    exit_with_parent_thread()
    if os.getppid() != parent:
        os._exit(0)
    init_process_title()
    with gc_disabled():
        for name in modules:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    gc.freeze()  # as in gc_frozen, but for good
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
        # Everything is done. Python would need another two seconds to clean up the modules of torch and vLLM.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else 1)


def init_process_title() -> None:
    """Let ``setproctitle`` find the memory of this process's title, by which ``ps`` and ``nvidia-smi`` show it.

    Version 1.3 searches when it is first used, next to the first environment variable. If that variable has changed, it
    finds nothing.
    """
    with contextlib.suppress(ImportError):
        import setproctitle

        setproctitle.getproctitle()


def _called(order: bytes) -> tuple[bool, bytes | str]:
    """Call a pickled function. Return True and its pickled result, or False and the traceback."""
    try:
        return True, pickle.dumps(pickle.loads(order)())
    except Exception:
        return False, traceback.format_exc()


def _take_over(environment: Mapping[str, str | None]) -> None:
    set_variables(environment)
    if "torch" in sys.modules and environment.get(SET_BY_VLLM) == "1":
        import torch

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
