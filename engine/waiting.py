"""What runs in a core's process that was started early: import, wait, become the core."""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from multiprocessing import spawn

SIZE_BYTES = 8
"""Bytes before the environment that say how many it has."""
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


def main(modules: Sequence[str], pipe: int, tracker: int) -> None:
    """Import ``modules``, wait for the environment on ``pipe``, and do what ``multiprocessing`` says there next.

    Ends without a word if the parent does, or wants this process no more. What can't be imported now raises when vLLM
    needs it.

    Args:
        modules: names of modules.
        pipe: file descriptor to read from.
        tracker: that of the resource tracker.
    """
    with no_collection():
        for name in modules:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    gc.freeze()  # as in set_aside, for good
    size = _read(pipe, SIZE_BYTES)
    environment = json.loads(_read(pipe, int.from_bytes(size, "big")))
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if "torch" in sys.modules and environment.get(SET_BY_VLLM) == "1":
        import torch

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    try:
        spawn.spawn_main(tracker_fd=tracker, pipe_handle=pipe)
    except SystemExit as end:  # always
        # All is over and said. To take torch's and vLLM's modules apart would take another two seconds.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else 1)


def _read(pipe: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = os.read(pipe, size - len(data))
        if not more:
            os._exit(0)
        data += more
    return data
