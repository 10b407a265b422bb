"""Waits for work that nothing can end, but not longer than it may take. The thread that does it is given up.

``ThreadPoolExecutor`` would wait for such a thread when the process ends.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

_T = TypeVar("_T")
_Work = Callable[[], None]
_idle: list[SimpleQueue[_Work]] = []
"""The queues of threads that have no work. To start a thread for each file costs a fifth of the time of a picture."""
os.register_at_fork(after_in_child=_idle.clear)  # a fork has none of the threads


def run(work: _Work) -> None:
    """Call ``work``, which raises nothing, in a thread that doesn't hold up the end of the process."""
    try:
        queue = _idle.pop()
    except IndexError:
        queue = SimpleQueue()
        threading.Thread(target=_serve, args=(queue,), name="daft-vllm-file", daemon=True).start()
    queue.put(work)


def _serve(queue: SimpleQueue[_Work]) -> None:
    while True:
        queue.get()()
        _idle.append(queue)


def within(seconds: float, work: Callable[[], _T], too_slow: Callable[[], Exception]) -> _T:
    """Return what ``work`` returns. If it takes too long, its thread is given up, and ends with the process.

    Args:
        seconds: how long it may take.
        work: it is called in another thread.
        too_slow: returns what is raised if it takes longer.
    """
    future: Future[_T] = Future()

    def put() -> None:
        try:
            future.set_result(work())
        except BaseException as e:
            future.set_exception(e)

    run(put)
    try:
        return future.result(seconds)
    except TimeoutError:
        if future.done():
            return future.result()  # or the work's own TimeoutError
        raise too_slow() from None
