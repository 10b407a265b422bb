"""Measures what it saves, at the end of a run, to know the lengths of answers: ``python -m benchmarks.parts.tail``.

Runs the engine's own queue with rows that have answers of different lengths. There is no model: a simulated engine runs
``SEQUENCES`` rows at once and writes one token of each in a step. Prints the number of steps divided by the fewest
possible (all sequences busy to the end). The queue gets the lengths of the answers in four ways:

* nothing: every row has the same limit, so the queue never takes a row out of order;
* own limit: the row's true length as its ``max_tokens``;
* estimate, learned: the mean length of the answers of the same prefix so far, updated during the run;
* estimate, probed: the mean of the prefix, known from the start, as if some rows of every prefix had run before.
"""

from __future__ import annotations

import heapq
import random
from statistics import fmean, median
from types import SimpleNamespace

from daft_vllm.engine.requests.prepared import Prepared, pack_tokens
from daft_vllm.engine.scheduling.queue import PrefixQueue
from daft_vllm.engine.scheduling.row import Call, Row

SEQUENCES = 64
PREFIXES = 20
BLOCK_SIZE = 16
SIZES = (200, 1000, 5000, 20000)
SEEDS = range(5)
LIMIT = 4096


def lengths(rows: int, seed: int) -> list[tuple[int, int]]:
    """Return a prefix and a length for each row.

    Lengths are log-normal. Each prefix has its own mean, from 16 to 1024 tokens.
    """
    rng = random.Random(seed)
    means = [2 ** rng.uniform(4, 10) for _ in range(PREFIXES)]
    chosen = [rng.randrange(PREFIXES) for _ in range(rows)]
    return [(p, max(1, min(LIMIT, round(means[p] * rng.lognormvariate(0, 0.6))))) for p in chosen]


def steps(rows: list[tuple[int, int]], knowledge: str) -> int:
    """Return the steps that the rows take."""
    call = Call(len(rows))
    by_prefix: dict[int, list[int]] = {}
    for prefix, length in rows:
        by_prefix.setdefault(prefix, []).append(length)
    mean = {prefix: round(fmean(known)) for prefix, known in by_prefix.items()}
    overall = round(fmean(length for _, length in rows))

    def row(index: int, limit: int) -> Row:
        prefix, _ = rows[index]
        tokens = pack_tokens([prefix] * BLOCK_SIZE + [index])
        return Row(call, index, Prepared(tokens, SimpleNamespace(max_tokens=limit), False), BLOCK_SIZE, dedupe=False)

    limits = {
        "nothing": [LIMIT] * len(rows),
        "own limit": [length for _, length in rows],
        "learned": [overall] * len(rows),
        "probed": [mean[prefix] for prefix, _ in rows],
    }[knowledge]
    queue = PrefixQueue(BLOCK_SIZE, SEQUENCES)
    queue.push(row(index, limit) for index, limit in enumerate(limits))
    finished: dict[int, list[int]] = {prefix: [] for prefix in by_prefix}
    running: list[tuple[int, int]] = []  # when it ends, which row
    now = done = 0
    while len(queue) or running:
        while len(queue) and len(running) < SEQUENCES:
            index = queue.pop().index
            heapq.heappush(running, (now + rows[index][1], index))
        now, index = heapq.heappop(running)
        prefix, length = rows[index]
        finished[prefix].append(length)
        if knowledge == "learned" and done % SEQUENCES == 0:
            waiting = queue.remove(lambda row: True)
            estimates = {p: round(fmean(known)) if known else overall for p, known in finished.items()}
            queue.push(row(one.index, estimates[rows[one.index][0]]) for one in waiting)
        done += 1
    return now


def main() -> None:
    """Print steps over the fewest possible, median of the seeds."""
    names = ("nothing", "own limit", "learned", "probed")
    print("| rows | " + " | ".join(names) + " |\n|---" + "|---" * len(names) + "|")
    for size in SIZES:
        ratios: dict[str, list[float]] = {name: [] for name in names}
        for seed in SEEDS:
            rows = lengths(size, seed)
            fewest = max(sum(length for _, length in rows) / SEQUENCES, max(length for _, length in rows))
            for name in names:
                ratios[name].append(steps(rows, name) / fewest)
        print(f"| {size:,} | " + " | ".join(f"{median(ratios[name]):.3f}" for name in names) + " |", flush=True)


if __name__ == "__main__":
    main()
