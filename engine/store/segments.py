"""The files of a store. Each is written by one process, only at its end, and read by any number of them.

A file begins with ``MAGIC`` and goes on with frames: a head, which has the length and the checksum of what follows, and
an Arrow record batch of answers. A reader leaves out a frame that is cut off or damaged, and all that follow it. No
other process ever continues a file, so nothing that was written well is behind a frame that was cut off.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

logger = logging.getLogger("daft_vllm")

MAGIC = b"daft-vllm answers, version 1\n"
SUFFIX = ".answers"
_HEAD = struct.Struct("<4sQI")
_MARK = b"\xf0ANS"
_LARGEST = 256 << 20
"""Bytes of a file after which the next one is begun."""
_FRAME = 1 << 30
"""A frame has at most these bytes. A head that says more is damaged."""

KEY_BYTES = 16
SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary(KEY_BYTES), nullable=False),
        pa.field("text", pa.large_string()),
        pa.field("finish_reason", pa.string()),
        pa.field("stop_reason", pa.string()),
        pa.field("reasoning", pa.large_string()),
        pa.field("tool_answer", pa.large_string()),
        pa.field("prompt_tokens", pa.int64(), nullable=False),
        pa.field("cached_tokens", pa.int64(), nullable=False),
        pa.field("completion_tokens", pa.int64(), nullable=False),
        pa.field("error_code", pa.string()),
        pa.field("error_message", pa.string()),
        pa.field("written", pa.timestamp("ms", "UTC"), nullable=False),
    ]
)
"""The columns of an answer. ``stop_reason`` and ``tool_answer`` are JSON."""


class Frame(NamedTuple):
    """Where a frame's record batch is.

    Attributes:
        path: the file.
        offset: of the batch in it, in bytes.
        length: of the batch, in bytes.
    """

    path: Path
    offset: int
    length: int

    def read(self) -> pa.RecordBatch:
        """Return the batch. It was found intact when the store was opened."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return pa.ipc.read_record_batch(pa.py_buffer(file.read(self.length)), SCHEMA)


class SegmentWriter:
    """Writes answers at the end of a file of its own. For one thread at a time.

    Args:
        folder: the store's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: int | None = None
        self._size = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch, and return when it is on the disk.

        Raises:
            OSError: it can't be written. What was written before is safe; the file is given up, and the next batch
                begins another one.
        """
        payload = batch.serialize().to_pybytes()
        frame = _HEAD.pack(_MARK, len(payload), zlib.crc32(payload)) + payload
        if self._file is None or self._size > _LARGEST:
            self._begin()
        assert self._file is not None
        try:
            view = memoryview(frame)
            while view:
                view = view[os.write(self._file, view) :]
            os.fdatasync(self._file)
        except OSError:
            self.close()  # its last frame may be half a frame
            raise
        self._size += len(frame)

    def _begin(self) -> None:
        self.close()
        name = f"{time.time_ns() // 10**6:013d}-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}{SUFFIX}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        file = os.open(self._folder / name, flags, 0o644)
        try:
            os.write(file, MAGIC)
        except OSError:
            os.close(file)
            raise
        self._file, self._size = file, len(MAGIC)
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):  # some network disks can't
                os.fsync(folder)  # so that the file's name, too, is on the disk
        finally:
            os.close(folder)

    def close(self) -> None:
        """Close the file. The next batch begins another one."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def segments_of(folder: Path) -> list[Path]:
    """Return the files of a store, the oldest first."""
    return sorted(path for path in folder.iterdir() if path.suffix == SUFFIX)


def frames_of(path: Path) -> Iterator[tuple[Frame, pa.RecordBatch]]:
    """Yield the intact frames of a file, and their batches, up to the first that is cut off or damaged.

    Raises:
        ValueError: another version of daft-vllm has written the file.
    """
    with path.open("rb") as file:
        begin = file.read(len(MAGIC))
        if begin != MAGIC:
            if MAGIC.startswith(begin):
                return  # its writer was killed as it began
            raise ValueError(f"{path} was not written by this version of daft-vllm")
        offset = len(MAGIC)
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            mark, length, checksum = _HEAD.unpack(head)
            offset += _HEAD.size
            payload = file.read(length) if mark == _MARK and length <= _FRAME else b""
            if len(payload) < length or mark != _MARK or zlib.crc32(payload) != checksum:
                logger.warning(
                    "%s is cut off or damaged at byte %d: answers behind that are computed again", path, offset
                )
                return
            yield Frame(path, offset, length), pa.ipc.read_record_batch(pa.py_buffer(payload), SCHEMA)
            offset += length
