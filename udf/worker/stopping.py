"""Stops a query early: vLLM gets no more rows, those inside it may finish, and their answers get into the store.

The process that wants it puts a file into the folder with the counters of the query (``progress.py``). Each process
with an engine hears of it through its channel, does the rest, and says so.
"""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

import psutil

from daft_vllm.errors import EngineClosedError
from daft_vllm.folders import write_whole
from daft_vllm.udf.worker import stored
from daft_vllm.udf.worker.engines import open_engines
from daft_vllm.udf.worker.progress import STOP, STOPPED, Channel, is_stopped

_POLL_SECONDS = 0.1
_NOTICE_SECONDS = 2.0
"""How long the processes may take to notice that they are to stop: they look twice a second, and those of Ray once in a
second. So long a process of Ray is silent before it is taken for gone."""
_CLOSE_SECONDS = 3.0
"""How long vLLM's processes may take to end by themselves, without rows. They take one second, or are killed."""


def stop_query(folder: str, seconds: float) -> None:
    """Stop a query, and return when all of its processes have stopped.

    Args:
        folder: where its counters are.
        seconds: how long rows inside vLLM may take to finish. It takes at most 5 seconds more.
    """
    with contextlib.suppress(OSError):
        write_whole(Path(folder) / STOP, str(seconds))
    deadline = time.monotonic() + seconds + _NOTICE_SECONDS + _CLOSE_SECONDS
    while time.monotonic() < deadline and _working(folder):
        time.sleep(_POLL_SECONDS)


def _working(folder: str) -> bool:
    """Whether a process that answers rows of the query runs, and has not stopped."""
    for path in Path(folder).glob("*.json"):
        with contextlib.suppress(OSError):
            if not path.with_suffix(STOPPED).exists() and _lives(path):
                return True
    return False


def _lives(counters: Path) -> bool:
    """Whether the process with these counters runs. On Ray it may be on another machine: it runs if it has reported."""
    owner = counters.name.partition("-")[0]
    if owner.isdecimal():
        return psutil.pid_exists(int(owner))
    return time.time() - counters.stat().st_mtime < _NOTICE_SECONDS


def raise_if_stopped(folder: str | None, board: str | None = None) -> None:
    """Raise ``EngineClosedError`` if the query with these counters was stopped. Arguments as in ``channel_of``."""
    if is_stopped(folder, board):
        raise EngineClosedError("the query was stopped before all rows were answered.")


def stop_here_if_asked(channel: Channel) -> bool:
    """If the query was stopped, begin to stop this process's part of it, in another thread. Return whether it was.

    Args:
        channel: the way of this process's counters.
    """
    seconds = channel.stop_seconds()
    if seconds is None:
        return False
    threading.Thread(target=_stop_here, args=(channel, seconds), name="daft-vllm-stop", daemon=True).start()
    return True


def _stop_here(channel: Channel, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    engines = open_engines()
    for engine in engines:
        engine.drain(0)  # none of them begins a row while another one is waited for
    for engine in engines:
        engine.drain(max(0.0, deadline - time.monotonic()))
    stored.flush_all()
    for engine in engines:
        engine.close(_CLOSE_SECONDS)  # so the batches of the query fail, and Daft ends it
    channel.say_stopped()
