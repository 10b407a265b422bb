"""Where the answer to each key is. A million keys take 40 MB."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from daft_vllm.engine.requests.outcome import Outcome
from daft_vllm.engine.store.codec import outcomes_at
from daft_vllm.engine.store.segments import KEY_BYTES, Frame, frames_of, segments_of

_KEPT = 64
"""Frames that are kept in memory once they were read. Rows that were answered together are often asked together."""


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
        halves: list[np.ndarray] = []
        frames: list[np.ndarray] = []
        for path in segments_of(folder):
            for frame, batch in frames_of(path):
                keys = np.frombuffer(b"".join(batch.column("key").to_pylist()), dtype=">u8").reshape(-1, 2)
                halves.append(keys)
                frames.append(np.full(len(keys), len(self._frames), dtype=np.int32))
                self._frames.append(frame)
        keys = np.concatenate(halves) if halves else np.empty((0, 2), dtype=">u8")
        number = np.concatenate(frames) if frames else np.empty(0, dtype=np.int32)
        rows = np.concatenate([np.arange(len(half), dtype=np.int32) for half in halves]) if halves else number
        order = np.lexsort((keys[:, 1], keys[:, 0]))  # equal keys stay in the order in which they were written
        self._first = keys[order, 0].astype(np.uint64)
        self._second = keys[order, 1].astype(np.uint64)
        self._place = np.stack([number[order], rows[order]], axis=1) if len(order) else np.empty((0, 2), dtype=np.int32)
        self._taken: dict[bytes, int] = {}
        self._read: OrderedDict[int, pa.RecordBatch] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of answers."""
        return len(self._first)

    def find(self, keys: Sequence[bytes], again: Sequence[bool]) -> list[Outcome | None]:
        """Return the outcome of each key. None: there is none, or no further one.

        Args:
            keys: ``KEY_BYTES`` bytes each.
            again: for each, whether the same outcome may be returned any number of times. Else each of the outcomes
                with this key is returned once, in the order in which they were written.
        """
        if not keys or not len(self):
            return [None] * len(keys)
        wanted = np.frombuffer(b"".join(keys), dtype=">u8").reshape(-1, KEY_BYTES // 8).astype(np.uint64)
        low = np.searchsorted(self._first, wanted[:, 0], "left")
        high = np.searchsorted(self._first, wanted[:, 0], "right")
        found: list[Outcome | None] = [None] * len(keys)
        by_frame: dict[int, list[tuple[int, int]]] = {}  # which key, and the row of its outcome
        for i, key in enumerate(keys):
            second = self._second[low[i] : high[i]]
            first = int(np.searchsorted(second, wanted[i, 1], "left"))
            places = int(np.searchsorted(second, wanted[i, 1], "right")) - first
            nth = 0 if again[i] else self._taken.get(key, 0)
            if nth < places:
                if not again[i]:
                    self._taken[key] = nth + 1
                frame, row = self._place[low[i] + first + nth].tolist()
                by_frame.setdefault(frame, []).append((i, row))
        for frame, pairs in by_frame.items():
            outcomes = outcomes_at(self._batch(frame), [row for _, row in pairs])
            for (i, _), outcome in zip(pairs, outcomes, strict=True):
                found[i] = outcome
        return found

    def _batch(self, number: int) -> pa.RecordBatch:
        if number in self._read:
            self._read.move_to_end(number)
        else:
            self._read[number] = self._frames[number].read()
            if len(self._read) > _KEPT:
                self._read.popitem(last=False)
        return self._read[number]
