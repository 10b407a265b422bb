"""Sends files and pixels between two processes, through memory that both have.

A socket takes about 200 KB at once, so the pixels of one picture would wake both processes several times. On a machine
whose cores are busy, that costs more than to decode the picture.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import select
from collections.abc import Iterable, Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any

PART_BYTES = 32 << 20
"""The size of the shared memory. Larger data comes in parts, so that a large image is in memory once on each side."""
_LONGEST_HEADER = 1 << 20
Parts = Iterable[tuple[bytes | memoryview, bool]]
"""Parts of at most ``PART_BYTES``, each with whether it is the last one. There is at least one."""


def shared_memory() -> int:
    """Return a file descriptor of new memory. It can't be made smaller: whoever reads it then would be killed."""
    memory = os.memfd_create("daft-vllm-media", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(memory, PART_BYTES)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return memory


class Exchange:
    """One end. A message is a header (JSON), and bytes in one or more parts. For one thread at a time.

    Args:
        connection: the connection to the other process.
        memory: the file descriptor of the shared memory. It is closed.
    """

    def __init__(self, connection: Connection, memory: int) -> None:
        self._connection = connection
        self._memory = memoryview(mmap.mmap(memory, PART_BYTES))
        os.close(memory)
        self._poll = select.poll()
        self._poll.register(connection.fileno(), select.POLLIN)

    def send(self, header: Mapping[str, Any], parts: Parts) -> None:
        """Send a message. Before each further part, wait until the other end has taken the one before."""
        for part, is_last in parts:
            self._memory[: len(part)] = part
            self._connection.send_bytes(json.dumps({**header, "bytes": len(part), "is_last": is_last}).encode())
            if not is_last:
                self._connection.recv_bytes(_LONGEST_HEADER)

    def wait(self, seconds: float) -> bool:
        """Return whether a message has come, or the other end is closed, after at most so many seconds."""
        return bool(self._poll.poll(max(0.0, seconds) * 1000))

    def receive(self) -> tuple[dict[str, Any], Iterator[memoryview]]:
        """Return a message. Each part is overwritten when the next one is asked for. All have to be taken.

        Raises:
            EOFError: the other end is closed.
            OSError: the other end has stopped in the middle.
        """
        header: dict[str, Any] = json.loads(self._connection.recv_bytes(_LONGEST_HEADER))
        return header, self._parts(header)

    def _parts(self, header: dict[str, Any]) -> Iterator[memoryview]:
        while True:
            yield self._memory[: header["bytes"]]
            if header["is_last"]:
                return
            self._connection.send_bytes(b"next")
            header = json.loads(self._connection.recv_bytes(_LONGEST_HEADER))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def parts_of(data: bytes) -> Parts:
    """Return data in parts."""
    view = memoryview(data)
    for start in range(0, max(1, len(view)), PART_BYTES):
        yield view[start : start + PART_BYTES], start + PART_BYTES >= len(view)


def joined(parts: Iterator[memoryview]) -> bytes:
    """Return the data of a message's parts."""
    return b"".join([bytes(part) for part in parts])
