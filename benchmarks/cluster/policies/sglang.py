"""The cache-aware rule of SGLang's router, by its source.

sgl-project/sglang: ``sgl-router/src/policies/cache_aware.rs`` and ``tree.rs`` (commits 026f853b and 4d40eec0). The
numbers are the defaults of its command: ``cache_threshold`` 0.3, ``balance_abs_threshold`` 64,
``balance_rel_threshold`` 1.5, and a tree so large that nothing is forgotten.

A text is as long as its tokens. The tree has a node for each piece that rows share; a row's own text is counted, but
never matched.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.cluster.policies.base import Assigning, Setting
from benchmarks.cluster.traces import Row

_CACHE = 0.3
_ABSOLUTE = 64
_RELATIVE = 1.5


class SGLangRouter(Assigning):
    """To the replica with the longest prefix, or to the one with the least if loads differ too much."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._loads = [0] * setting.replicas  # rows that are not answered
        self._sizes = [0] * setting.replicas  # tokens in the tree
        self._holders: dict[int, dict[int, None]] = {}  # of each piece: the replicas, in order of their first row

    def add(self, rows: Sequence[Row]) -> None:
        """Take rows."""
        for row in rows:
            place = self._select(row)
            for piece, tokens in row.parts:
                holders = self._holders.setdefault(piece, {})
                if place not in holders:
                    holders[place] = None
                    self._sizes[place] += tokens
            self._sizes[place] += row.prompt - sum(tokens for _, tokens in row.parts)
            self._loads[place] += 1
            self.assign(place, [row])

    def answered(self, place: int, rows: Sequence[Row]) -> None:
        """Count the rows that are left."""
        self._loads[place] -= len(rows)

    def _select(self, row: Row) -> int:
        most, least = max(self._loads), min(self._loads)
        if most - least > _ABSOLUTE and most > least * _RELATIVE:
            return self._loads.index(least)
        matched, holder = 0, None
        for piece, tokens in row.parts:
            holders = self._holders.get(piece)
            if holders is None:
                break
            matched += tokens
            holder = next(iter(holders))
        if holder is not None and matched > _CACHE * row.prompt:
            return holder
        return self._sizes.index(min(self._sizes))
