"""``AnswerStore``: answers are on the disk before they are handed on."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from daft_vllm.engine.store.codec import Record, batch_of
from daft_vllm.engine.store.index import Found, opened_index
from daft_vllm.engine.store.remote import ObjectWriter, RemoteStore, is_url, local_copy
from daft_vllm.engine.store.segments import SegmentWriter
from daft_vllm.errors import StoreError

_SECONDS = 0.25
"""How long an answer waits for others before it is written. One write then serves all of them."""
_REMOTE_SECONDS = 2.0
"""The same for a store under a URL, where each write is an object."""
_ROWS = 1024
"""How many answers are written at once at most."""


class AnswerStore:
    """The answers of a job, in a folder. Any number of processes may use the folder, and any number of threads this.

    Args:
        place: an existing folder; or a URL, see ``remote.py``.

    Raises:
        StoreError: it can't be read, or another version of daft-vllm has written it.
    """

    def __init__(self, place: str | Path) -> None:
        self.place = str(place)
        self._copy = contextlib.ExitStack()  # the copy of a store under a URL, as long as this is open
        folder = self._copy.enter_context(local_copy(self.place))
        is_remote = is_url(self.place)
        self._writer = ObjectWriter(RemoteStore(self.place)) if is_remote else SegmentWriter(folder)
        self._seconds = _REMOTE_SECONDS if is_remote else _SECONDS
        try:
            self._index = opened_index(folder, self.place)
        except StoreError:
            self._copy.close()
            raise
        self._reading = threading.Lock()
        self._lock = threading.Condition()
        self._records: list[Record] = []
        self._appended = 0
        self._written = 0
        self._error: Exception | None = None
        self._is_closed = False
        self._waiting = 0  # callers of ``flush``
        self._thread = threading.Thread(target=self._write_all, name="daft-vllm-store", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """Return how many answers there were when it was opened."""
        return len(self._index)

    @property
    def has_unasked(self) -> bool:
        """Whether some rows could not be asked when it was opened."""
        return self._index.has_unasked

    def find(self, keys: Sequence[bytes], again: Sequence[bool]) -> list[Found | None]:
        """Return what is known of each key, see ``Index.find``."""
        with self._reading:  # not the other lock: ``append`` doesn't wait for the disk
            try:
                return self._index.find(keys, again)
            except OSError as e:
                raise StoreError(f"the store {self.place} can't be read any more: {e}") from e

    def append(self, record: Record) -> None:
        """Keep a record, to be written soon; ``flush`` waits until it is. It doesn't block."""
        with self._lock:
            self._records.append(record)
            self._appended += 1
            if len(self._records) in (1, _ROWS):  # it begins to wait, or need not wait longer
                self._lock.notify_all()

    def flush(self) -> None:
        """Return when everything that was appended before is on the disk.

        Raises:
            StoreError: it can't be written. What was written before is kept.
        """
        with self._lock:
            upto = self._appended
            self._waiting += 1
            self._lock.notify_all()
            while self._written < upto and self._error is None and self._thread.is_alive():
                self._lock.wait(1)
            self._waiting -= 1
            if self._written < upto:
                why = self._error or "the store is closed"
                raise StoreError(
                    f"answers can't be written to the store {self.place}: {why}. The {self._written} answers that "
                    "this process has written are kept: mend that, and run the job again to go on."
                )

    def close(self) -> None:
        """Write what is left, and close the files."""
        with self._lock:
            self._is_closed = True
            self._lock.notify_all()
        self._thread.join()
        self._copy.close()

    def _write_all(self) -> None:
        while True:
            with self._lock:
                while not self._records and not self._is_closed:
                    self._lock.wait()
                if not self._records:
                    self._writer.close()
                    return
                deadline = time.monotonic() + self._seconds
                while len(self._records) < _ROWS and not (self._is_closed or self._waiting):
                    left = deadline - time.monotonic()
                    if left <= 0:
                        break
                    self._lock.wait(left)
                records, self._records = self._records[:_ROWS], self._records[_ROWS:]
            try:
                self._writer.write(batch_of(records))
            except Exception as e:  # a disk that is full, for example
                with self._lock:
                    self._error = e
                    self._lock.notify_all()
                    with contextlib.suppress(OSError):
                        self._writer.close()
                return
            with self._lock:
                self._written += len(records)
                self._lock.notify_all()
