"""Ends a UDF process quickly: when it has nothing to do any more, and when the script that it works for has ended."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable

from daft_vllm.folders import remove_passing_folders

LEAVE_SECONDS = 3.0
"""After this long the process ends, whatever it waits for. The kernel kills vLLM's processes with it."""
HANDLES_SIGNALS = "DAFT_VLLM_HANDLES_SIGNALS"
"""The variable with the id of a process that handles Ctrl-C itself."""
PARENT_SECONDS = 0.5
"""How often a UDF process looks whether the script that it works for runs."""


def leave_quickly(close: Callable[[], None]) -> None:
    """Make a UDF process of Daft's native runner kill its engines and exit, without the shutdown of torch and vLLM.

    Daft waits 5 seconds for the process to exit, and then reports an error. On a busy machine vLLM alone may take more
    to end by itself. By then every batch has been returned, so vLLM has nothing to finish. Exit functions run in
    reverse order: call this before the engine is opened, for a start that fails, and again when it is open, to be the
    first.

    Args:
        close: kills the engines, and removes what they leave behind.
    """
    if _is_udf_process():
        _closers[:] = [close]
        atexit.unregister(_end_process)
        atexit.register(_end_process, close)


def stand_alone() -> None:
    """Let a UDF process of Daft's native runner end with the script that it works for, in the middle of a batch.

    Daft alone would let it finish the batch first, or load the model, beside a job that is started again. If the script
    has set ``HANDLES_SIGNALS``, Ctrl-C in a terminal is kept from this process: the script stops the query. Else Ctrl-C
    ends it, as in a notebook. Safe to call again.
    """
    if _is_udf_process() and _parents == []:
        _parents.append(os.getppid())
        if os.environ.get(HANDLES_SIGNALS) == str(os.getppid()):
            with contextlib.suppress(OSError):
                os.setpgid(0, 0)
        threading.Thread(target=_end_with_parent, name="daft-vllm-parent", daemon=True).start()


_parents: list[int] = []
"""The script's process."""
_closers: list[Callable[[], None]] = []


def _end_with_parent() -> None:
    while os.getppid() == _parents[0]:
        time.sleep(PARENT_SECONDS)
    _end_process(_closers[0] if _closers else lambda: None)


def _is_udf_process() -> bool:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name == "daft.execution.udf_worker"


def _end_process(close: Callable[[], None]) -> None:
    timer = threading.Timer(LEAVE_SECONDS, os._exit, [0])
    timer.daemon = True
    timer.start()
    with contextlib.suppress(Exception):
        close()
        remove_passing_folders()  # the exit function that does it may come after this one
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)
