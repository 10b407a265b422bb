"""The waiting rows of all callers, in the order that computes each shared prefix once."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter

from daft_vllm.engine.scheduling.prefix import SWEEP_START, computed_tokens, shared_blocks
from daft_vllm.engine.scheduling.row import Row

_key_of = attrgetter("key")


class PrefixQueue:
    """Rows ordered by ``Row.key``, given out in sweeps through that order, like an elevator that only goes down.

    A row that arrives ahead of the sweep joins it. A row that arrives behind it waits for the next sweep. So no row
    waits longer than one sweep. Rows with the same blocks keep their order of arrival. Rows that share a prefix leave
    one after the other, also if they come from different callers.

    A row is taken out of order only if its answer would otherwise be the last to end: if its ``max_tokens`` is at least
    the number of decode steps that all waiting rows need together, with every sequence of the engine busy. In the order
    of the sweep such a row would run alone at the end. If all rows have the same ``max_tokens``, this never happens.

    Not thread-safe. Adding and removing n rows costs O(n log n) in all, nearly all of it in Python's own sort.

    Args:
        block_size: tokens of one KV block.
        max_num_seqs: sequences that the engine runs at once.
    """

    def __init__(self, block_size: int, max_num_seqs: int) -> None:
        self.block_size = block_size
        self.optimal_tokens = 0
        """The fewest prompt tokens that any order of the rows given out could have computed. Exact within one sweep.
        Blocks that a later sweep shares with an earlier one are counted again."""
        self._max_num_seqs = max_num_seqs
        # By the id() of the key: hashing a key of kilobytes costs as much as sorting it in. The lists of keys below
        # keep each key alive, so no other key can have its id().
        self._rows: dict[int, Row] = {}
        # Keys of the sweep's rows in a few sorted lists; the next key of each list is its last. Keys of rows that left
        # ahead of the sweep, or were removed, stay in the lists until the sweep passes them.
        self._runs: list[list[bytes]] = []
        self._behind: list[bytes] = []  # keys of the next sweep, not sorted
        self._position = SWEEP_START
        self._taken_early: dict[int, Row] = {}
        self._guess = 0
        self._lengths: Counter[int] = Counter()  # number of waiting rows by their max_tokens
        self._length_total = 0
        self._longest = 0
        self._longest_rows: deque[Row] = deque()

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows.values())

    def push(self, rows: Iterable[Row]) -> None:
        """Add rows. Each key has to be unique, as the keys of ``order_key`` are."""
        new = list(rows)
        position = self._position
        ahead: list[bytes] = []
        for row in new:
            key = row.key
            self._rows[id(key)] = row
            (ahead if key < position else self._behind).append(key)
        if ahead:
            ahead.sort()
            self._add_run(ahead)
        for length, count in Counter([row.max_tokens for row in new]).items():
            self._lengths[length] += count
            self._length_total += length * count
            self._longest = max(self._longest, length)

    def pop(self) -> Row:
        """Take the next row.

        Raises:
            IndexError: no row is waiting.
        """
        if not self._rows:
            raise IndexError("no row is waiting")
        row = self._pop_long() or self._pop_next()
        self._uncount(row)
        if not self._rows:
            self._end_sweep()
        return row

    def remove(self, unwanted: Callable[[Row], bool]) -> list[Row]:
        """Remove and return the rows for which ``unwanted`` returns True."""
        removed = [row for row in self._rows.values() if unwanted(row)]
        for row in removed:
            del self._rows[id(row.key)]
            self._uncount(row)
        if not self._rows:
            self._end_sweep()
        return removed

    def _pop_next(self) -> Row:
        while True:
            key = self._next_key()
            row = self._rows.pop(id(key), None)
            if row is not None:
                self._pass(row)
                return row
            row = self._taken_early.pop(id(key), None)
            if row is not None:
                self._pass(row)

    def _add_run(self, run: list[bytes]) -> None:
        """Add sorted keys to the sweep.

        Runs of similar sizes are merged. So the number of runs is at most the logarithm of the number of keys, and so
        is the number of times that a key is moved.
        """
        runs = self._runs
        while runs and len(runs[-1]) < 2 * len(run):
            longer = runs.pop()
            longer.extend(run)
            longer.sort()  # in linear time: Python's sort finds the two sorted runs
            run = longer
        runs.append(run)

    def _next_key(self) -> bytes:
        """Take the next key of the sweep. At the end of the sweep, take the first key of the next sweep."""
        runs = self._runs
        if not runs:
            self._behind.sort()
            runs.append(self._behind)
            self._behind = []
        best = runs[0]
        for run in runs:
            if run[-1] > best[-1]:
                best = run
        key = best.pop()
        if not best:
            runs[:] = [run for run in runs if run]
        return key

    def _pop_long(self) -> Row | None:
        """Take a row if its answer would otherwise be the last to end. None: there is no such row."""
        if len(self._lengths) < 2 or self._longest * self._max_num_seqs < self._length_total:
            return None
        while True:
            while self._longest_rows:
                row = self._longest_rows.popleft()
                if row.max_tokens == self._longest and self._rows.pop(id(row.key), None) is not None:
                    self._taken_early[id(row.key)] = row
                    return row
            longest = (row for row in self._rows.values() if row.max_tokens == self._longest)
            self._longest_rows.extend(sorted(longest, key=_key_of, reverse=True))

    def _pass(self, row: Row) -> None:
        """Move the sweep to ``row``, and count the prompt tokens that it costs at best."""
        self._guess = shared = shared_blocks(self._position, row.key, self.block_size, self._guess)
        if row.media and shared:
            shared -= 1  # the first block of the key stands for the media
            row.first_with_media = False
        row.new_tokens = computed_tokens(row.size, shared, self.block_size)
        self.optimal_tokens += row.new_tokens
        self._position = row.key

    def _end_sweep(self) -> None:
        """Pass the rows that left ahead of the sweep, and set up a new sweep."""
        for row in sorted(self._taken_early.values(), key=_key_of, reverse=True):
            self._pass(row)
        for keys in (self._taken_early, self._runs, self._behind, self._longest_rows):
            keys.clear()
        self._position = SWEEP_START

    def _uncount(self, row: Row) -> None:
        length = row.max_tokens
        self._length_total -= length
        self._lengths[length] -= 1
        if not self._lengths[length]:
            del self._lengths[length]
            if length == self._longest:
                self._longest = max(self._lengths, default=0)
