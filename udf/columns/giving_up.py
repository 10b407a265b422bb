"""Waits for work that nothing can end, but not longer than it may take."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

_T = TypeVar("_T")


def within(seconds: float, work: Callable[[], _T], too_slow: Callable[[], Exception]) -> _T:
    """Return what ``work`` returns. If it takes too long, its thread is given up, and ends with the process.

    Args:
        seconds: how long it may take.
        work: it is called in a thread of its own.
        too_slow: returns what is raised if it takes longer.
    """
    future: Future[_T] = Future()

    def put() -> None:
        try:
            future.set_result(work())
        except BaseException as e:
            future.set_exception(e)

    threading.Thread(target=put, name="daft-vllm-file", daemon=True).start()
    if not wait([future], seconds).done:
        raise too_slow()
    return future.result()
