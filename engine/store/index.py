"""Where the answer to each key is. A million keys take 50 MB.

A key says what was asked. Rows that ask the same at a temperature above 0, without a seed, get an answer each: they
have the same key, and each a number, ``row``, which is drawn at random when the row is asked. All other rows with the
same key have the number ``ANY_ROW``, since any of their answers is as good.

Of the records of a row, this one holds: the one with the highest ``attempt``, and of several with the same the one that
was written last. But a record without an answer never takes the place of one with an answer.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daft_vllm.engine.requests.outcome import ErrorCode, Outcome
from daft_vllm.engine.store.codec import outcomes_at
from daft_vllm.engine.store.segments import KEY_BYTES, SCHEMA, Frame, frames_of, segments_of
from daft_vllm.errors import StoreError

ANY_ROW = 0
"""``row`` of all rows that get the same answer if they ask the same."""
NOT_ASKED = 1
"""``row`` of rows that can't be asked: their key stands for their cells. Without an error: later they could be."""
FIRST_ROW = 2
"""The smallest number of any other row."""
ANSWERED: tuple[ErrorCode | None, ...] = (None, "truncated", "invalid_output")
"""Error codes of a record with an answer. It is not asked for again by itself, though it may be of no use."""

_KEPT = 64
"""Frames that are kept in memory once they were read. Rows that were answered together are often asked together."""


class Found(NamedTuple):
    """What a store knows of a row.

    Attributes:
        outcome: the outcome of its last attempt. An error that was found by reading the text is left out of it.
        row: its number.
        attempts: how often it was asked.
        code: the code of its error, whoever found it.
        is_answer: whether this is an answer, so that the row need not be asked again.
    """

    outcome: Outcome
    row: int
    attempts: int
    code: str | None
    is_answer: bool


class Index:
    """The answers that a store's folder has when it is opened.

    Not thread-safe.

    Args:
        folder: the folder.

    Raises:
        ValueError: another version of daft-vllm has written a file.
    """

    def __init__(self, folder: Path) -> None:
        self._frames: list[Frame] = []
        columns: list[tuple[np.ndarray, ...]] = []
        for path in segments_of(folder):
            for frame, batch in frames_of(path):
                columns.append(_heads(batch))
                self._frames.append(frame)
        sizes = [len(one[0]) for one in columns]
        number = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        place = np.concatenate([np.arange(size, dtype=np.int32) for size in (0, *sizes)])
        columns = columns or [_heads(pa.RecordBatch.from_pylist([], schema=SCHEMA))]
        first, second, row, attempt, answered, failed = (np.concatenate(one) for one in zip(*columns, strict=True))
        order = np.lexsort((attempt, answered, row, second, first))  # equal ones stay as they were written
        starts = _starts(first[order], second[order], row[order])
        last = order[np.append(starts[1:], len(order)) - 1] if len(order) else order
        attempts = np.maximum.reduceat(attempt[order], starts) if len(order) else attempt
        if len(_starts(first[last], second[last])) < len(last):  # of those that ask the same, answers go first
            earliest = np.minimum.reduceat(order, starts)
            by_key = np.lexsort((earliest, ~answered[last], second[last], first[last]))
            last, attempts = last[by_key], attempts[by_key]
        self._first, self._second, self._row = first[last], second[last], row[last]
        self._answered, self._failed, self._attempts = answered[last], failed[last], attempts
        self._place = np.stack([number[last], place[last]], axis=1)
        self._taken: dict[bytes, int] = {}
        self._read: OrderedDict[int, pa.RecordBatch] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of answers."""
        return int(self._answered.sum())

    @property
    def has_unasked(self) -> bool:
        """Whether some rows could not be asked."""
        return bool(np.any((self._row == NOT_ASKED) & self._failed))

    def find(self, keys: Sequence[bytes], again: Sequence[bool]) -> list[Found | None]:
        """Return what is known of each key. None: nothing, or nothing further.

        Args:
            keys: ``KEY_BYTES`` bytes each.
            again: for each, whether the same row may be returned any number of times. Else each of the rows with this
                key is returned once: first those with an answer, each in the order in which they were written.
        """
        if not keys or not len(self._first):
            return [None] * len(keys)
        wanted = np.frombuffer(b"".join(keys), dtype=">u8").reshape(-1, KEY_BYTES // 8).astype(np.uint64)
        low = np.searchsorted(self._first, wanted[:, 0], "left")
        high = np.searchsorted(self._first, wanted[:, 0], "right")
        found: list[Found | None] = [None] * len(keys)
        by_frame: dict[int, list[tuple[int, int, int]]] = {}  # which key, which row, and where its record is
        for i, key in enumerate(keys):
            second = self._second[low[i] : high[i]]
            first = int(np.searchsorted(second, wanted[i, 1], "left"))
            places = int(np.searchsorted(second, wanted[i, 1], "right")) - first
            nth = 0 if again[i] else self._taken.get(key, 0)
            if nth < places:
                if not again[i]:
                    self._taken[key] = nth + 1
                at = int(low[i]) + first + nth
                frame, row = self._place[at].tolist()
                by_frame.setdefault(frame, []).append((i, at, row))
        for frame, found_here in by_frame.items():
            batch, rows = self._batch(frame), [row for _, _, row in found_here]
            codes = batch.column("error_code").take(pa.array(rows, pa.int32())).to_pylist()
            for (i, at, _), outcome, code in zip(found_here, outcomes_at(batch, rows), codes, strict=True):
                found[i] = Found(outcome, int(self._row[at]), int(self._attempts[at]), code, bool(self._answered[at]))
        return found

    def records(self, *, failed: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield the record that holds of each row, in the order in which they were written, in batches.

        ``attempt`` is how often the row was asked, and nothing is yielded for rows that could not be asked, and later
        were.

        Args:
            failed: only rows with an error.
        """
        wanted = self._failed if failed else self._failed | (self._row != NOT_ASKED)
        places, attempts = self._place[wanted], self._attempts[wanted]
        order = np.lexsort((places[:, 1], places[:, 0]))
        places, attempts = places[order], attempts[order]
        bounds = [*_starts(places[:, 0]).tolist(), len(places)]
        for start, end in itertools.pairwise(bounds):
            batch = self._frames[places[start, 0]].read().take(pa.array(places[start:end, 1]))
            at = batch.schema.get_field_index("attempt")
            yield batch.set_column(at, batch.schema.field(at), pa.array(attempts[start:end], pa.int32()))

    def _batch(self, number: int) -> pa.RecordBatch:
        if number in self._read:
            self._read.move_to_end(number)
        else:
            self._read[number] = self._frames[number].read()
            if len(self._read) > _KEPT:
                self._read.popitem(last=False)
        return self._read[number]


def opened_index(folder: Path, called: str | None = None) -> Index:
    """Return the index of a store.

    Args:
        folder: the store's folder.
        called: what messages call it. None: its path.

    Raises:
        StoreError: it can't be read, or another version of daft-vllm has written it.
    """
    try:
        return Index(folder)
    except (OSError, ValueError) as e:
        raise StoreError(f"the store {called or folder} can't be read: {e}") from e


def _heads(batch: pa.RecordBatch) -> tuple[np.ndarray, ...]:
    """Return of each record both halves of its key, its row and attempt, and whether it has an answer, and an error."""
    joined = b"".join(batch.column("key").to_pylist())
    keys = np.frombuffer(joined, dtype=">u8").reshape(-1, 2).astype(np.uint64)
    code = batch.column("error_code")
    failed = pc.is_valid(code)
    known = pc.is_in(code, pa.array(ANSWERED, pa.string()))
    answered = pc.and_(pc.is_valid(batch.column("text")), known)
    row, attempt = batch.column("row"), batch.column("attempt")
    others = (one.to_numpy(zero_copy_only=False) for one in (row, attempt, answered, failed))
    return keys[:, 0], keys[:, 1], *(np.array(one) for one in others)  # copies: else the texts would stay in memory


def _starts(*columns: np.ndarray) -> np.ndarray:
    """Return where the runs of equal values begin."""
    size = len(columns[0])
    is_new = np.zeros(size, dtype=bool)
    is_new[:1] = True
    for column in columns:
        is_new[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(is_new)
