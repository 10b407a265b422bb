"""Processes for work that may never end: started with a connection, held to limits of time and memory, and killed."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection

START_SECONDS = 60.0
"""How long a process may take until it is ready."""
_GRACE_SECONDS = 5
"""The owner kills a process that takes too long. If the owner itself is gone, the kernel does, so much later."""
_UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


def start_child(
    module: str, environment: Mapping[str, str], *, files: Sequence[int] = (), stall_seconds: int | None = None
) -> tuple[subprocess.Popen[bytes], Connection]:
    """Start a module as a process of its own, and return it with the connection to it.

    Its end of the connection is ``own_connection``. It says nothing on the screen.

    Args:
        module: the full name of the module.
        environment: its environment variables; Python's search path is added.
        files: file descriptors that it inherits. Their numbers are its further arguments.
        stall_seconds: how long a message may stop on its way. Default: without limit.
    """
    ours, theirs = socket.socketpair()
    if stall_seconds is not None:
        for way in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            ours.setsockopt(socket.SOL_SOCKET, way, struct.pack("ll", stall_seconds, 0))
    search_path = os.pathsep.join(place or os.getcwd() for place in sys.path)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *map(str, (theirs.fileno(), *files))],
            env={**environment, "PYTHONPATH": search_path},
            pass_fds=[theirs.fileno(), *files],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C in a terminal is for the process that started it
        )
    return process, Connection(ours.detach())


def own_connection() -> Connection:
    """Return the connection to the process that started this one. This process leaves no core dump."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return Connection(int(sys.argv[1]))


@contextlib.contextmanager
def limited(seconds: float, memory: int) -> Iterator[None]:
    """Limit what this process takes inside the ``with`` block. After it, time and memory are free again.

    Args:
        seconds: how long it may take, and some seconds more, before the kernel ends the process.
        memory: how many bytes more than now it may have. Beyond it, ``MemoryError`` is raised.
    """
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    signal.alarm(math.ceil(seconds) + _GRACE_SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (used + memory, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, _UNLIMITED)
