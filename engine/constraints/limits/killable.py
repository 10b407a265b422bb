"""Runs a function in a process that is killed if it takes too long, for work that can't be interrupted."""

from __future__ import annotations

import math
import os
import pickle
import socket
import subprocess
import sys
import threading
import weakref
from multiprocessing.connection import Connection
from typing import Any

SECONDS = 5.0
"""How long one call may take."""
MEMORY = 1 << 30
"""How many bytes of memory one call may take."""
_START_SECONDS = 60.0
_GRACE_SECONDS = 5
_CHILD = """# daft_vllm.engine.constraints: see guardian.py
import gc, os, pickle, resource, signal, sys
from multiprocessing.connection import Connection
connection = Connection(int(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
kept = None
while True:
    try:
        made, arguments = pickle.loads(connection.recv_bytes())
    except EOFError:
        break
    try:
        if made is not None:
            kept = None
            kept = pickle.loads(made)
            connection.send_bytes(b"ready")
            continue
        signal.alarm(int(sys.argv[2]))  # if the parent is gone, nobody else ends this call
        with open("/proc/self/statm", encoding="ascii") as file:
            used = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[3]), resource.RLIM_INFINITY))
        answer = pickle.dumps((kept(*arguments), None))
    except Exception as e:
        try:
            text = f"{type(e).__name__}: {e}"
        except Exception:
            text = type(e).__name__
        answer = pickle.dumps((None, text))
    signal.alarm(0)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    connection.send_bytes(answer)
"""


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
                connection.send_bytes(pickle.dumps((None, arguments)))
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
        ours, theirs = socket.socketpair()
        self._connection = connection = Connection(ours.detach())
        self._owner = os.getpid()
        search_path = os.pathsep.join(place or os.getcwd() for place in sys.path)
        arguments = [str(theirs.fileno()), str(math.ceil(SECONDS) + _GRACE_SECONDS), str(MEMORY)]
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", _CHILD, *arguments],
                env={**os.environ, "PYTHONPATH": search_path},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        self._end = weakref.finalize(self, _end, process, connection, os.getpid())
        try:
            connection.send_bytes(pickle.dumps((self._pickled, ())))
            ready = connection.poll(_START_SECONDS) and connection.recv_bytes()
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
