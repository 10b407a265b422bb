"""Runs a function in a process that is killed if it takes too long, for work that can't be interrupted."""

from __future__ import annotations

import os
import pickle
import subprocess
import threading
import weakref
from multiprocessing.connection import Connection
from typing import Any

from daft_vllm.children import START_SECONDS, start_child

SECONDS = 5.0
"""How long one call may take."""
MEMORY = 1 << 30
"""How many bytes of memory one call may take."""
_MODULE = "daft_vllm.engine.constraints.limits.killable_main"


class CallFailed(Exception):
    """A call in the other process took too long, raised an exception, or ended the process."""


class KillableFunction:
    """A function that runs in a process of its own, one call at a time. Any number of threads may call it.

    The process starts with the first call, and again after one that was killed. It ends with this object.

    Args:
        pickled: the function, pickled. Its arguments and results are pickled too.
    """

    def __init__(self, pickled: bytes) -> None:
        self._pickled = pickled
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._end: weakref.finalize[Any, Any] | None = None
        self._owner = 0  # the process that this object's process was started by, and not a fork of it

    def __call__(self, *arguments: Any) -> Any:
        """Return the function's result.

        Raises:
            CallFailed: it took longer than ``SECONDS``, took more than ``MEMORY``, or raised an exception.
        """
        with self._lock:
            connection = self._started()
            try:
                connection.send_bytes(pickle.dumps((None, SECONDS, MEMORY, arguments)))
                if not connection.poll(SECONDS):
                    self.close()
                    raise CallFailed(f"it takes more than {SECONDS:g} seconds")
                result, error = pickle.loads(connection.recv_bytes())
            except (OSError, EOFError):
                self.close()
                raise CallFailed("the process that works on it has died") from None
            except BaseException:
                self.close()
                raise
        if error is not None:
            raise CallFailed(error)
        return result

    def close(self) -> None:
        """End the process. The next call starts another."""
        self._connection = None
        if self._end is not None:
            self._end()

    def _started(self) -> Connection:
        if self._connection is not None and self._owner == os.getpid():
            return self._connection
        process, connection = start_child(_MODULE, os.environ)
        self._connection = connection
        self._owner = os.getpid()
        self._end = weakref.finalize(self, _end, process, connection, os.getpid())
        try:
            connection.send_bytes(pickle.dumps((self._pickled, SECONDS, MEMORY, ())))
            ready = connection.poll(START_SECONDS) and connection.recv_bytes()
        except (OSError, EOFError):
            ready = b""
        if ready != b"ready":
            self.close()
            reason = pickle.loads(ready)[1] if ready else "it did not start"
            raise CallFailed(f"the process that works on it can't be used: {reason}")
        return connection


def _end(process: subprocess.Popen[bytes], connection: Connection, owner: int) -> None:
    connection.close()
    if owner == os.getpid():
        process.kill()
        process.wait()
