"""Plans how a table is cut for several engines: into partitions, and each partition into batches.

Daft gives each worker (a node of a Ray cluster) one partition after the other as a task. It cuts the rows of a task
into batches for the engines of that worker. All engines are busy if
``(engines / workers) x batch_size = rows of a task``, as ByteDance found. Three things prevent that. If partitions
differ in size, workers wait for the one with the largest. If there are fewer partitions than workers, some workers get
none. And if a batch is so large that a partition is only one or two batches, some engines are idle while another works.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from daft_vllm.errors import OptionError

if TYPE_CHECKING:
    from daft import DataFrame, Expression

DRAIN_ROWS = 7
"""The time that an engine loses at the end of a batch, in rows: 5 to 9 were measured with 64 sequences at once
(``python -m benchmarks.parts.draining``)."""
_ROUNDS = 4
"""The fewest batches for each engine, if there are enough rows. If one engine is slow, others take more batches."""


@dataclass(frozen=True)
class TablePlan:
    """A plan of how to cut a table.

    Args:
        rows: rows of the table.
        workers: nodes.
        engines: engines on all workers together.
        batch_size: for ``prompt(batch_size=...)``.
        rows_per_task: for ``df.into_batches(...)``.
        tasks: how many partitions result.
    """

    rows: int
    workers: int
    engines: int
    batch_size: int
    rows_per_task: int
    tasks: int

    @property
    def calls(self) -> str:
        """The calls of Daft and ``prompt()`` to write, as Python code."""
        cut = f"df = df.into_batches({self.rows_per_task})\n" if self.workers > 1 else ""
        return f"{cut}prompt(..., max_concurrency={self.engines}, batch_size={self.batch_size})"

    def partitions(self) -> list[int]:
        """Return the rows of each task."""
        full, rest = divmod(self.rows, self.rows_per_task)
        return [self.rows_per_task] * full + ([rest] if rest else [])


def plan_table(rows: int, *, engines: int, workers: int = 1, batch_size: int = 2048) -> TablePlan:
    """Return how to cut a table so that every engine is busy.

    Args:
        rows: rows of the table.
        engines: engines on all workers; a multiple of ``workers``.
        workers: nodes.
        batch_size: the most rows in a batch. Large batches lose less time at their ends, see ``prompt()``.

    Raises:
        OptionError: a number is below 1, or the engines can't be spread evenly.
    """
    for name, value in (("rows", rows), ("engines", engines), ("workers", workers), ("batch_size", batch_size)):
        if value < 1:
            raise OptionError(f"{name} is at least 1, got {value}.")
    if engines % workers:
        raise OptionError(
            f"{engines} engines don't spread evenly over {workers} workers: some would wait for the others. Use "
            f"{engines // workers * workers or workers} or {math.ceil(engines / workers) * workers}."
        )
    size = max(1, min(batch_size, math.ceil(rows / (engines * _ROUNDS))))
    rounds = math.ceil(rows / (engines * size))
    size = math.ceil(rows / (engines * rounds))  # so that the last round is full too
    task = engines // workers * size
    return TablePlan(rows, workers, engines, size, task, math.ceil(rows / task))


def partition_by_prefix(df: DataFrame, *prompt: Expression | str, rows_per_task: int | None = None) -> DataFrame:
    """Sort a table by its prompts, so that the same engine answers rows that share a prefix.

    This is for engines that don't share one queue: those on Ray, and those with ``use_process=True``. Each gets batches
    of neighbours then, and computes their prefixes once. A prefix with more rows than a batch is divided. In the driver
    engines share a queue, which keeps prefixes together by itself among the rows that it has: 64 batches or more.

    Args:
        df: the table.
        prompt: the columns of text that make the prompts, in that order: expressions or names.
        rows_per_task: cut the table into partitions of so many rows, which ``daft-vllm plan`` computes. Default: the
            partitions that Daft's sort makes.

    Returns:
        The same rows in another order.

    Raises:
        OptionError: no column is given, one is no text, or ``rows_per_task`` is below 1.
    """
    if not prompt:
        raise OptionError("partition_by_prefix needs the columns of the prompt: partition_by_prefix(df, 'question').")
    if rows_per_task is not None and rows_per_task < 1:
        raise OptionError(f"rows_per_task is at least 1, got {rows_per_task}.")
    columns: list[Expression | str] = [*prompt]
    named = [(df[one] if isinstance(one, str) else one).alias(f"{i}") for i, one in enumerate(prompt)]
    for number, field in enumerate(df.select(*named).schema(), 1):
        if not field.dtype.is_string():
            raise OptionError(f"column {number} of the prompt is {field.dtype}, not text: cast it to a string.")
    ordered = df.sort(columns)
    return ordered if rows_per_task is None else ordered.into_batches(rows_per_task)


@dataclass(frozen=True)
class Simulated:
    """The result of a simulated run.

    Args:
        seconds: time until the last row was answered.
        busy: share of that time in which engines worked, on average.
        idle_engines: engines that never got a batch.
    """

    seconds: float
    busy: float
    idle_engines: int


def simulate(
    partitions: Sequence[int], *, engines: int, workers: int, batch_size: int, seconds_per_row: float = 1.0
) -> Simulated:
    """Simulate a run of a table. A worker takes the next partition when it has no batch left for its engines.

    Args:
        partitions: rows of each partition, in order.
        engines: engines on all workers.
        workers: nodes.
        batch_size: rows of a batch.
        seconds_per_row: an engine's time for a row.
    """
    waiting = deque(rows for rows in partitions if rows)
    batches: list[deque[int]] = [deque() for _ in range(workers)]
    free = [(0.0, engine) for engine in range(engines)]
    heapq.heapify(free)
    worked = [0.0] * engines
    end = 0.0
    while free:
        now, engine = heapq.heappop(free)
        mine = batches[engine % workers]
        if not mine and waiting:
            rows = waiting.popleft()
            mine.extend([batch_size] * (rows // batch_size) + ([rows % batch_size] if rows % batch_size else []))
        if not mine:
            continue  # this engine is done
        taken = (mine.popleft() + DRAIN_ROWS) * seconds_per_row
        worked[engine] += taken
        end = max(end, now + taken)
        heapq.heappush(free, (now + taken, engine))
    return Simulated(end, sum(worked) / (end * engines) if end else 0.0, sum(not time for time in worked))
