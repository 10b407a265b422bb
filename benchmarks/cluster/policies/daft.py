"""Daft's own prefix routing, by its source.

Eventual-Inc/Daft 0.7.26: ``src/daft-local-execution/src/streaming_sink/vllm.rs`` makes buckets of prompts,
``PrefixRouter`` in ``daft/execution/vllm.py`` gives each bucket to an engine. The numbers are the defaults in
``daft/ai/vllm/protocols/prompter.py``.

The best case for it: one sink sees the whole table, in morsels of Daft's default size, and the ratio of two texts is
that of their tokens.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from benchmarks.cluster.policies.base import Assigning, Setting
from benchmarks.cluster.policies.static import in_order, shared_blocks
from benchmarks.cluster.traces import BLOCK, Row

_MAX_BUFFER = 5000
_MATCH = 0.33
_BALANCE = 256
_RECENT = 8
_MORSEL = 131_072

_Prefix = tuple[int, ...]


class DaftRouter(Assigning):
    """Keeps 5,000 rows back, gives away the largest buckets of the rest, and knows 8 prefixes of each replica."""

    batch = _MORSEL

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._buffer: list[Row] = []
        self._loads = [0] * setting.replicas  # rows ever sent
        self._recent: list[list[_Prefix]] = [[] for _ in range(setting.replicas)]

    def add(self, rows: Sequence[Row]) -> None:
        """Take a morsel."""
        self._buffer += rows
        self._pop(_MAX_BUFFER)

    def finish(self) -> None:
        """Give away what is left: there are no more rows."""
        self._pop(0)

    def _pop(self, keep: int) -> None:
        if len(self._buffer) <= keep:
            return
        ordered = in_order(self._buffer)
        splits: list[tuple[int, int, int]] = []
        start = 0
        for i in range(len(ordered) - 1):
            common = shared_blocks(ordered[i], ordered[i + 1]) * BLOCK
            if common < _MATCH * ordered[i].prompt and common < _MATCH * ordered[i + 1].prompt:
                splits.append((start - i - 1, -start, -i - 1))
                start = i + 1
        splits.append((start - len(ordered), -start, -len(ordered)))
        heapq.heapify(splits)  # of a Rust heap the largest comes first, so all three are negative here
        left = len(ordered)
        while left > keep:
            length, first, end = heapq.heappop(splits)
            bucket = ordered[-first:-end]
            self.assign(self._route(_common(bucket), len(bucket)), bucket)
            left += length
        self._buffer = [row for _, first, end in splits for row in ordered[-first:-end]]

    def _route(self, prefix: _Prefix, rows: int) -> int:
        most = min(self._loads) + _BALANCE
        best = recency = None
        for place, (load, recent) in enumerate(zip(self._loads, self._recent, strict=True)):
            if load < most:
                found = recent.index(prefix) if prefix in recent else None
                if recency is None or (found is not None and found < recency):
                    best, recency = place, found
        assert best is not None
        self._recent[best] = [prefix, *self._recent[best]][:_RECENT]
        self._loads[best] += rows
        return best


def _common(rows: Sequence[Row]) -> _Prefix:
    """Return the blocks that all rows begin with. They are in order, so the first and the last tell."""
    return rows[0].blocks if len(rows) == 1 else rows[0].shared[: shared_blocks(rows[0], rows[-1])]
