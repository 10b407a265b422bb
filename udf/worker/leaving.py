"""Ends a UDF process quickly, and with the process that started it."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import threading
import time
from collections.abc import Callable

from daft_vllm.folders import remove_passing_folders

LEAVE_SECONDS = 3.0
"""After this long the process ends, whatever it waits for. The kernel kills vLLM's processes with it."""

PARENT_SECONDS = 1.0
"""How often a UDF process looks whether the process that started it is there."""


def leave_quickly(close: Callable[[], None]) -> None:
    """Make a UDF process of Daft's native runner kill its engines and exit, without the shutdown of torch and vLLM.

    Daft waits 5 seconds for the process to exit, and then reports an error. On a busy machine vLLM alone may take more
    to end by itself. By then every batch has been returned, so vLLM has nothing to finish. Exit functions run in
    reverse order: call this before the engine is opened, for a start that fails, and again when it is open, to be the
    first.

    If Daft's process is killed, this one ends too. It would notice only when it returns a batch, and until then load
    the model, or answer rows that nobody takes, beside the job that is started again.

    Args:
        close: kills the engines, and removes what they leave behind.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name == "daft.execution.udf_worker":
        _end_with_parent(close)
        atexit.unregister(_end_process)
        atexit.register(_end_process, close)


@functools.cache
def _end_with_parent(close: Callable[[], None]) -> None:
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_SECONDS)
        _end_process(close)

    threading.Thread(target=watch, name="daft-vllm-parent", daemon=True).start()


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
