"""Measures what bookkeeping costs per row: ``python -m benchmarks.parts.overhead``.

Runs the engine's own queue, duplicates, counters and results with synthetic rows of 512 tokens and no model, in the
order of the real engine. The rows of one call are made and queued, ``RENDER_ROWS`` at a time. They are taken out one by
one, as by an engine with room for ``SEQUENCES``, turned into the lists that vLLM gets, and answered. Each size runs in
its own process.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, NamedTuple

import numpy as np
import typer

from benchmarks.suite.memory import high_water_mb
from daft_vllm.engine.offline import RENDER_ROWS
from daft_vllm.engine.requests.outcome import Outcome
from daft_vllm.engine.requests.prepared import Prepared
from daft_vllm.engine.requests.stats import EngineStats
from daft_vllm.engine.scheduling.duplicates import Duplicates
from daft_vllm.engine.scheduling.queue import PrefixQueue
from daft_vllm.engine.scheduling.row import Call, Row

TOKENS = 512
SHARED = 256
ROWS_PER_PREFIX = 32
BLOCK_SIZE = 16
SEQUENCES = 256


class Cost(NamedTuple):
    """Cost of bookkeeping at one size.

    Attributes:
        rows: how many rows.
        queue_microseconds: making a row from its tokens (key, digest) and queueing it, per row.
        admit_microseconds: taking it out in prefix order.
        list_microseconds: turning its tokens back into the list that vLLM gets.
        result_microseconds: recording its outcome.
        microseconds: all four.
        bytes: growth of the process's peak memory, per row, the tokens themselves included.
    """

    rows: int
    queue_microseconds: float
    admit_microseconds: float
    list_microseconds: float
    result_microseconds: float
    microseconds: float
    bytes: float


def measure(rows: int) -> Cost:
    """Run ``rows`` rows through the bookkeeping and return the cost in CPU time of one thread."""
    rng = np.random.default_rng(0)
    prefixes = rng.integers(0, 50_000, (max(1, rows // ROWS_PER_PREFIX), SHARED), dtype=np.int32)
    params = SimpleNamespace(max_tokens=128)
    queue, duplicates, stats = PrefixQueue(BLOCK_SIZE, SEQUENCES), Duplicates(), EngineStats()
    before = high_water_mb(os.getpid())
    queueing = admitting = listing = finishing = 0.0
    call = Call(rows)
    for start in range(0, rows, RENDER_ROWS):
        size = min(RENDER_ROWS, rows - start)
        own = rng.integers(0, 50_000, (size, TOKENS - SHARED), dtype=np.int32)
        chosen = rng.integers(0, len(prefixes), size)
        prepared = [
            Prepared(prefixes[p].tobytes() + tail.tobytes(), params, False, b"digest")
            for p, tail in zip(chosen, own, strict=True)
        ]
        since = time.thread_time()
        new, _ = duplicates.split_new_and_known(
            [Row(call, index, one, BLOCK_SIZE, dedupe=True) for index, one in enumerate(prepared, start)]
        )
        queue.push(new)
        queueing += time.thread_time() - since
    inside: deque[Row] = deque()
    answer = "an answer of some length " * 4
    while len(queue) or inside:
        since = time.thread_time()
        new = [queue.pop() for _ in range(min(len(queue), SEQUENCES - len(inside)))]
        inside.extend(new)
        popped = time.thread_time()
        for row in new:
            assert len(row.token_ids) == TOKENS
        between = time.thread_time()
        for _ in range(min(SEQUENCES // 2, len(inside))):
            row = inside.popleft()
            outcome = Outcome(answer, "stop", TOKENS, SHARED, 100, 0.5)
            for twin in duplicates.finish(row, outcome):
                twin.call.put(twin.index, outcome)
            stats.finish(outcome)
            row.call.put(row.index, outcome)
        admitting += popped - since
        listing += between - popped
        finishing += time.thread_time() - between
    answered = len(call.future.result())
    if answered != rows:
        raise AssertionError(f"{rows} rows went in and {answered} came out")
    total = queueing + admitting + listing + finishing
    return Cost(
        rows=rows,
        queue_microseconds=round(queueing / rows * 1e6, 2),
        admit_microseconds=round(admitting / rows * 1e6, 2),
        list_microseconds=round(listing / rows * 1e6, 2),
        result_microseconds=round(finishing / rows * 1e6, 2),
        microseconds=round(total / rows * 1e6, 2),
        bytes=round((high_water_mb(os.getpid()) - before) * (1 << 20) / rows),
    )


def main(
    sizes: Annotated[str, typer.Option(help="Numbers of rows, separated by commas.")] = "10000,100000,1000000",
    out: Annotated[Path | None, typer.Option(help="JSON file to write the figures to.")] = None,
) -> None:
    """Print the cost per row at each size."""
    costs = []
    print("| rows | queue µs | admit µs | list µs | result µs | all µs | bytes |\n|---|---|---|---|---|---|---|")
    context = multiprocessing.get_context("spawn")
    for size in (int(text) for text in sizes.split(",")):
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            cost = pool.submit(measure, size).result()
        costs.append(cost._asdict())
        print("| " + " | ".join(f"{value:,}" for value in cost) + " |", flush=True)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(costs, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
