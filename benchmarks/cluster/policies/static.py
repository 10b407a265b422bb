"""Policies that know the whole table, and one that knows nothing."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

from benchmarks.cluster.policies.base import Assigning, Setting
from benchmarks.cluster.traces import BLOCK, Row

_SLACK = 0.02
"""By how much of a part's work a cut may move to where fewer blocks are shared."""


class Random(Assigning):
    """Each row to any replica."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._rng = random.Random(setting.seed)

    def add(self, rows: Sequence[Row]) -> None:
        """Take rows."""
        for row in rows:
            self.assign(self._rng.randrange(self.setting.replicas), [row])


class Sorted(Assigning):
    """The sorted table in parts with the same number of rows."""

    batch = 0

    def add(self, rows: Sequence[Row]) -> None:
        """Take the table."""
        ordered, count = in_order(rows), self.setting.replicas
        for place in range(count):
            self.assign(place, ordered[len(rows) * place // count : len(rows) * (place + 1) // count])


class Planned(Assigning):
    """The sorted table in parts with the same work, cut where few blocks are shared.

    The work of a row is the time that it adds to the steps of a full replica, if its answer has half of
    ``max_tokens``.
    """

    batch = 0

    def add(self, rows: Sequence[Row]) -> None:
        """Take the table."""
        ordered, count = in_order(rows), self.setting.replicas
        shared = [0, *(shared_blocks(one, other) for one, other in pairwise(ordered))]
        total, until = 0.0, []
        for row, blocks in zip(ordered, shared, strict=True):
            total += self._work(row, row.prompt - blocks * BLOCK)
            until.append(total)
        part = total / count
        start = at = 0
        for place in range(count):
            end, best = len(ordered), (0, 0.0)
            if place + 1 < count:
                goal, end = part * (place + 1), start
                while at < len(ordered) and until[at] < goal - _SLACK * part:
                    at += 1
                end, best = at + 1, (shared[at + 1] if at + 1 < len(ordered) else 0, abs(until[at] - goal))
                probe = at + 1
                while probe + 1 < len(ordered) and until[probe] <= goal + _SLACK * part:
                    best, end = min((best, end), ((shared[probe + 1], abs(until[probe] - goal)), probe + 1))
                    probe += 1
                end = min(max(start, end), len(ordered))
            self.assign(place, ordered[start:end])
            start = end

    def _work(self, row: Row, new: int) -> float:
        seconds, output = self.setting.seconds, self.setting.max_tokens / 2
        token = seconds.step / self.setting.size.max_num_seqs + seconds.decode
        return seconds.new * new + output * (token + seconds.context * (row.prompt + output / 2))


def in_order(rows: Sequence[Row]) -> list[Row]:
    """Return rows in an order in which those that share blocks are next to each other."""
    return sorted(rows, key=lambda row: (row.shared, row.first))


def shared_blocks(one: Row, other: Row) -> int:
    """Return how many blocks two rows share."""
    if one.shared is other.shared or one.shared == other.shared:
        return len(one.shared)
    pairs = zip(one.shared, other.shared, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one.shared), len(other.shared)))
