"""Tables to simulate: how many tokens the rows share, how many are their own, and how much they write."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

BLOCK = 16
"""Tokens of a KV block: vLLM's default on GPUs."""

_FIRST_OWN = 1 << 24  # ids of blocks that rows share are below


@dataclass(frozen=True, slots=True)
class Row:
    """A row.

    Args:
        index: its place in the table.
        shared: ids of the full KV blocks at its start that it may share with other rows.
        first: id of the first of its own full blocks; the others follow.
        own: how many of these there are.
        prompt: tokens of its prompt.
        output: tokens of its answer. A policy doesn't know them.
        parts: the pieces that its prompt shares, from the outermost: an id and the tokens.
    """

    index: int
    shared: tuple[int, ...]
    first: int
    own: int
    prompt: int
    output: int
    parts: tuple[tuple[int, int], ...] = ()

    @property
    def blocks(self) -> tuple[int, ...]:
        """Ids of all its full blocks."""
        return (*self.shared, *range(self.first, self.first + self.own))


@dataclass(frozen=True)
class Trace:
    """A table.

    Args:
        name: its name.
        rows: its rows, in the order of the table.
        max_tokens: the most tokens of an answer, which is all that a policy knows of its length.
    """

    name: str
    rows: tuple[Row, ...]
    max_tokens: int

    @cached_property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(row.prompt for row in self.rows)

    @cached_property
    def optimum(self) -> int:
        """The fewest prompt tokens that could be computed: ``optimal_prompt_tokens``, which counts each block once.

        Only rows' own blocks are left out of the sort, since no other row has them.
        """
        distinct = {block for shared in {row.shared for row in self.rows} for block in shared}
        total = len(distinct) * BLOCK
        seen: set[tuple[int, ...]] = set()
        for row in self.rows:
            total += row.prompt - len(row.shared) * BLOCK
            if row.prompt == len(row.shared) * BLOCK:  # vLLM computes the last block of a cached prompt again
                total += BLOCK if row.shared in seen else 0
                seen.add(row.shared)
        return total


@dataclass(frozen=True)
class Shape:
    """How a trace is made.

    Args:
        rows: how many rows.
        levels: from the outermost: how many different pieces follow each piece before, and the tokens of one.
        own: tokens of a row that no other has.
        outputs: weights and ranges of the lengths of answers.
        zipf: exponent of the popularity of prefixes. 0: all are equally popular.
    """

    rows: int
    levels: tuple[tuple[int, int], ...]
    own: int
    outputs: tuple[tuple[float, int, int], ...]
    zipf: float = 0.0


_ANSWERS = ((1.0, 32, 128),)

SHAPES: dict[str, Shape] = {
    # Of Daft's blog on prefix bucketing: 200,000 rows, 512 prefixes of 512 tokens, on 128 replicas.
    "blog": Shape(200_000, ((512, 512),), 64, _ANSWERS),
    # arXiv 2412.03594: 6,400 requests, 2,000 shared tokens. Degree of sharing, own part and answers are our choice.
    "batchllm": Shape(6_400, ((400, 2_000),), 200, ((1.0, 100, 100),)),
    "zipf": Shape(200_000, ((512, 512),), 64, _ANSWERS, zipf=1.2),
    "nested": Shape(200_000, ((16, 256), (8, 128), (4, 128)), 64, _ANSWERS),
    "nosharing": Shape(200_000, (), 576, _ANSWERS),
    "mixed": Shape(200_000, ((512, 512),), 64, ((0.9, 16, 64), (0.1, 256, 768))),
}


def make_trace(name: str, *, scale: float = 1.0, seed: int = 1) -> Trace:
    """Return a trace of ``SHAPES``.

    Args:
        name: which.
        scale: of the rows and of the outermost pieces; 0.01 is a hundredth of both.
        seed: of everything random.

    Raises:
        KeyError: there is no such trace.
    """
    shape = SHAPES[name]
    levels = [
        (max(1, round(count * scale)) if depth == 0 else count, size)
        for depth, (count, size) in enumerate(shape.levels)
    ]
    return trace_of(name, replace(shape, rows=max(1, round(shape.rows * scale)), levels=tuple(levels)), seed=seed)


def trace_of(name: str, shape: Shape, *, seed: int = 1) -> Trace:
    """Return a trace of a shape."""
    rng = random.Random(f"{name}/{seed}")
    rows = shape.rows
    prefixes = _prefixes(shape.levels)
    if shape.zipf:
        weights = list(accumulate((place + 1) ** -shape.zipf for place in range(len(prefixes))))
        rng.shuffle(prefixes)
        chosen = rng.choices(prefixes, cum_weights=weights, k=rows)
    else:
        chosen = [prefixes[i % len(prefixes)] for i in range(rows)]
    rng.shuffle(chosen)
    lengths = rng.choices(shape.outputs, [weight for weight, _, _ in shape.outputs], k=rows)
    made = []
    first = _FIRST_OWN
    for index, ((shared, parts), (_, low, high)) in enumerate(zip(chosen, lengths, strict=True)):
        tokens = sum(size for _, size in parts) + shape.own
        own = tokens // BLOCK - len(shared)
        made.append(Row(index, shared, first, own, tokens, rng.randint(low, high), parts))
        first += own
    return Trace(name, tuple(made), max(high for _, _, high in shape.outputs))


_Prefix = tuple[tuple[int, ...], tuple[tuple[int, int], ...]]


def _prefixes(levels: Sequence[tuple[int, int]]) -> list[_Prefix]:
    """Return the full blocks and the parts of each prefix."""
    ids = iter(range(_FIRST_OWN))
    found: list[_Prefix] = [((), ())]
    before = 0
    for count, size in levels:
        blocks = (before + size) // BLOCK - before // BLOCK
        before += size
        found = [
            ((*shared, *(next(ids) for _ in range(blocks))), (*parts, (next(ids), size)))
            for shared, parts in found
            for _ in range(count)
        ]
    return found
