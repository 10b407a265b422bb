"""One engine: continuous batching, chunked prompts and a prefix cache as in vLLM's scheduler, without a model.

vLLM's own scheduler needs about a second of Python for 1,000 steps of 64 sequences. A table of 200,000 rows on 128
engines is 250,000 steps. So this is a scheduler of its own, in which a step costs only what changes in it: arrivals,
ends and new blocks. ``tests/benchmarks/cluster`` compares each of its steps with vLLM's.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from operator import attrgetter

from benchmarks.cluster.cache import BlockCache
from benchmarks.cluster.traces import BLOCK, Row

_number_of = attrgetter("number")


@dataclass(frozen=True)
class EngineSize:
    """The limits of an engine.

    Args:
        max_num_seqs: sequences that run at once.
        max_num_batched_tokens: tokens of a step.
        blocks: KV blocks.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    blocks: int

    def check(self, longest: int) -> None:
        """Check that sequences never have to be taken out again, which is not simulated.

        Args:
            longest: tokens of the longest row, with its answer.

        Raises:
            ValueError: the blocks, or the tokens of a step, are too few.
        """
        needed = self.max_num_seqs * -(-longest // BLOCK) + 1
        if needed > self.blocks:
            raise ValueError(
                f"{self.max_num_seqs} sequences of {longest} tokens need {needed} KV blocks, and there are "
                f"{self.blocks}: vLLM would take sequences out again, which is not simulated. Use fewer sequences."
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError("a step has a token for each sequence at least")


@dataclass(frozen=True, slots=True)
class Load:
    """What one step computes.

    Args:
        new: tokens of prompts.
        decode: tokens of answers, one for each sequence.
        context: tokens that were in the cache before the step, of all sequences in it.
    """

    new: int
    decode: int
    context: int


class _Sequence:
    __slots__ = ("computed", "named", "number", "row")

    def __init__(self, row: Row, number: int, cached: int) -> None:
        self.row = row
        self.number = number
        self.named = cached
        self.computed = cached * BLOCK


class Replica:
    """An engine.

    Attributes:
        waiting: rows that were sent and are not begun.
        running: how many rows it works on.
        computed_tokens: tokens of prompts that it computed.
        output_tokens: tokens of answers.
        steps: how many steps it made.
        cached: tokens that the rows begun last found in the cache, by the row's index.

    Args:
        size: its limits.
    """

    def __init__(self, size: EngineSize) -> None:
        self.waiting: deque[Row] = deque()
        self.running = 0
        self.computed_tokens = self.output_tokens = self.steps = 0
        self.cached: dict[int, int] = {}
        self._size = size
        self._cache = BlockCache(size.blocks)
        self._partial: _Sequence | None = None  # a prompt that is not computed to its end; never more than one
        self._decoding = 0
        self._context = 0  # tokens in the cache of all that write
        self._begun = 0
        self._growth: dict[int, int] = {}  # new blocks for answers, by step
        self._ends: dict[int, list[_Sequence]] = {}  # the sequences whose last token comes in a step

    @property
    def in_flight(self) -> int:
        """How many rows it has."""
        return len(self.waiting) + self.running

    def step(self) -> tuple[Load, list[Row]]:
        """Make a step. Return what it computed, and the rows that are answered after it."""
        step, decode, context = self.steps, self._decoding, self._context
        budget = self._size.max_num_batched_tokens - decode
        self._cache.take(self._growth.pop(step, 0))
        self._context += decode
        new = 0
        sequence = self._partial
        while budget:
            if sequence is None:
                if not self.waiting or self.running >= self._size.max_num_seqs:
                    break
                sequence = self._begin(self.waiting.popleft())
            context += sequence.computed
            tokens = min(budget, sequence.row.prompt - sequence.computed)
            budget -= tokens
            new += tokens
            self._compute(sequence, tokens)
            if sequence.computed < sequence.row.prompt:
                break
            self._write(sequence, step)
            sequence = None
        self._partial = sequence
        self.steps += 1
        self.computed_tokens += new
        return Load(new, decode, context), self._end(step)

    def _begin(self, row: Row) -> _Sequence:
        cached = self._cache.hits(row.shared, (row.prompt - 1) // BLOCK)
        self.cached[row.index] = cached * BLOCK
        self.running += 1
        self._begun += 1
        return _Sequence(row, self._begun, cached)

    def _compute(self, sequence: _Sequence, tokens: int) -> None:
        before = -(-sequence.computed // BLOCK)
        sequence.computed += tokens
        self._cache.take(-(-sequence.computed // BLOCK) - before)
        shared = sequence.row.shared
        if sequence.named < len(shared):
            full = min(sequence.computed // BLOCK, len(shared))
            self._cache.put(shared[sequence.named : full])
            sequence.named = full

    def _write(self, sequence: _Sequence, step: int) -> None:
        """Note what the answer of a sequence needs, whose first token comes in this step."""
        row = sequence.row
        last = step + row.output - 1
        self._ends.setdefault(last, []).append(sequence)
        self._decoding += 1
        self._context += row.prompt
        growth = self._growth
        first = step + 1 - row.prompt % -BLOCK  # the step whose token begins a block
        for at in range(first, last + 1, BLOCK):
            growth[at] = growth.get(at, 0) + 1

    def _end(self, step: int) -> list[Row]:
        ended = self._ends.pop(step, None)
        if not ended:
            return []
        ended.sort(key=_number_of)
        rows = []
        for sequence in ended:
            row = sequence.row
            held = row.prompt + row.output - 1
            full = held // BLOCK
            self._cache.free(row.shared, -1 - row.index, full - len(row.shared), -(-held // BLOCK) - full)
            self._decoding -= 1
            self._context -= held
            self.output_tokens += row.output
            rows.append(row)
        self.running -= len(rows)
        return rows
