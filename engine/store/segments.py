"""The files of a store. Each is written by one process, only at its end, and read by any number of them.

A file begins with ``MAGIC`` and goes on with frames: a head, which has the length and the checksum of what follows, and
an Arrow record batch with the columns of ``SCHEMA``. A reader leaves out a frame that is cut off or damaged, and all
that follow it. No other process ever continues a file, so nothing that was written well is behind such a frame.

Files of format 1, which had fewer columns, are read as if they were of format 2.
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
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

logger = logging.getLogger("daft_vllm")

MAGIC_1 = b"daft-vllm answers, version 1\n"
MAGIC = b"daft-vllm answers, version 2\n"
SUFFIX = ".answers"
_HEAD = struct.Struct("<4sQI")
_MARK = b"\xf0ANS"
_LARGEST = 256 << 20
"""Bytes of a file after which the next one is begun."""
_FRAME = 1 << 30
"""A frame has at most these bytes. A head that says more is damaged."""

KEY_BYTES = 16
SCHEMA_1 = pa.schema(
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
"""The columns of format 1."""
SCHEMA = pa.schema(
    [
        *SCHEMA_1,
        pa.field("row", pa.uint64(), nullable=False),
        pa.field("attempt", pa.int32(), nullable=False),
        pa.field("row_key", pa.string()),
        pa.field("prompt", pa.string()),
        pa.field("seconds", pa.float64()),
        pa.field("queue_seconds", pa.float64()),
        pa.field("verdict", pa.bool_(), nullable=False),
    ]
)
"""The columns of a record. ``stop_reason`` and ``tool_answer`` are JSON.

``key`` says what was asked, and ``row`` who asked it: rows whose answers are drawn at random have a number each, see
``daft_vllm.engine.store.index``. A row has several records if it was asked again, or if its answer was found to be
invalid after it was written. ``attempt``: how often it was asked, this time included. ``prompt``: how the user's last
text begins. ``verdict``: the error was found in the text after it was written, by the code that reads answers; whoever
asks gets the text, and reads it anew.
"""
_SCHEMAS: Mapping[bytes, pa.Schema] = {MAGIC_1: SCHEMA_1, MAGIC: SCHEMA}


class Frame(NamedTuple):
    """Where a frame's record batch is.

    Attributes:
        path: the file.
        offset: of the batch in it, in bytes.
        length: of the batch, in bytes.
        magic: with what the file begins: its format.
    """

    path: Path
    offset: int
    length: int
    magic: bytes = MAGIC

    def read(self) -> pa.RecordBatch:
        """Return the batch. It was found intact when the store was opened."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return self.batch(file.read(self.length))

    def batch(self, payload: bytes) -> pa.RecordBatch:
        """Return the batch that was read from the file, with the columns of ``SCHEMA``."""
        batch = pa.ipc.read_record_batch(pa.py_buffer(payload), _SCHEMAS[self.magic])
        return batch if self.magic == MAGIC else self._of_format_2(batch)

    def _of_format_2(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch of format 1 with the columns that it hasn't. Each record is a row of its own.

        The number of a row is the same whenever the file is read: it is made from the file's name and the row's place.
        A frame has more bytes than rows, so no two rows of a file have the same place.
        """
        name = blake2b(os.fsencode(self.path.name), digest_size=8).digest()
        first = np.uint64(int.from_bytes(name, "big") >> 1) + np.uint64(self.offset)
        rows = np.arange(batch.num_rows, dtype=np.uint64) + first
        more: dict[str, pa.Array] = {
            "row": pa.array(rows, pa.uint64()),
            "attempt": pa.array(np.ones(batch.num_rows, dtype=np.int32)),
            "verdict": pa.array(np.zeros(batch.num_rows, dtype=bool)),
        }
        arrays = [
            batch.column(one.name) if one.name in SCHEMA_1.names else more.get(one.name, pa.nulls(len(rows), one.type))
            for one in SCHEMA
        ]
        return pa.record_batch(arrays, schema=SCHEMA)


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
        frame = frame_of(batch)
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
        name = f"{writer_name()}{SUFFIX}"
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


def writer_name() -> str:
    """Return the beginning of the names of one writer's files. Nobody else has it, and later ones sort later."""
    return f"{time.time_ns() // 10**6:013d}-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def frame_of(batch: pa.RecordBatch) -> bytes:
    """Return a batch as a frame of a file."""
    payload = batch.serialize().to_pybytes()
    return bytes(_HEAD.pack(_MARK, len(payload), zlib.crc32(payload)) + payload)


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
        if begin not in _SCHEMAS:
            if any(magic.startswith(begin) for magic in _SCHEMAS):
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
            frame = Frame(path, offset, length, begin)
            yield frame, frame.batch(payload)
            offset += length
