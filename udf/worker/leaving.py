"""Ends a UDF process quickly."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Callable

from daft_vllm.folders import remove_passing_folders

LEAVE_SECONDS = 3.0
"""After this long the process ends, whatever it waits for. The kernel kills vLLM's processes with it."""


def leave_quickly(close: Callable[[], None]) -> None:
    """Make a UDF process of Daft's native runner kill its engines and exit, without the shutdown of torch and vLLM.

    Daft waits 5 seconds for the process to exit, and then reports an error. On a busy machine vLLM alone may take more
    to end by itself. By then every batch has been returned, so vLLM has nothing to finish. Exit functions run in
    reverse order: call this before the engine is opened, for a start that fails, and again when it is open, to be the
    first.

    Args:
        close: kills the engines, and removes what they leave behind.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name == "daft.execution.udf_worker":
        atexit.unregister(_end_process)
        atexit.register(_end_process, close)


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
