"""The interface of the arms: what each does, and what it returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from benchmarks.suite.counters import Counts
from benchmarks.suite.job import Job

if TYPE_CHECKING:
    import daft

PIECES = 20
"""Pieces of the table in the arms that end in ``-small``, as if it came from as many files or row groups."""


class NotExpressible(Exception):
    """The job cannot be written in this arm's interface, or the arm cannot run here; the message says why."""


@dataclass(frozen=True)
class EngineSetting:
    """The engine that every arm starts.

    Args:
        model: a folder, or a name on the hub.
        engine_args: arguments of vLLM's engine.
        gpus: GPUs of the engine. 0: the CPU.
    """

    model: str
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    gpus: int = 0


class Measured(NamedTuple):
    """One run of one job.

    Attributes:
        seconds: time from the prompts in memory to all texts in memory, without loading the model.
        texts: the answers in the order of the rows; None for a row that failed.
        prompt_tokens: prompt tokens of all rows, counted by vLLM.
        cached_tokens: those of them that came from the prefix cache. None: the arm doesn't report it.
        mean_running: running sequences, averaged over the scheduler's steps. None: the arm doesn't report it.
        load_seconds: time of loading, if this run had to load. None: the engine was loaded already.
        output_tokens: tokens of all answers. None: the arm doesn't report it.
        steps: steps of vLLM's scheduler. None: the arm doesn't report them.
        optimal_tokens: the fewest prompt tokens that these rows have to compute. None: the arm doesn't count them.
    """

    seconds: float
    texts: list[str | None]
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    mean_running: float | None = None
    load_seconds: float | None = None
    output_tokens: int | None = None
    steps: int | None = None
    optimal_tokens: int | None = None

    @classmethod
    def counted(cls, seconds: float, texts: list[str | None], counts: Counts) -> Measured:
        """Return a run whose tokens and steps an ``EngineCounter`` has counted."""
        return cls(
            seconds,
            texts,
            counts.prompt_tokens,
            counts.cached_tokens,
            counts.mean_running,
            output_tokens=counts.output_tokens,
            steps=counts.steps,
        )


class Arm(Protocol):
    """One way of answering a column of prompts. Built without loading anything."""

    def open(self) -> float:
        """Load the model and return the seconds it took. 0 where the arm loads within each run."""
        ...

    def run(self, job: Job) -> Measured:
        """Answer the job.

        Raises:
            NotExpressible: the arm's interface can't express the job.
        """
        ...

    def close(self) -> None:
        """Stop what ``open`` and ``run`` have started."""
        ...


def job_table(columns: Mapping[str, Sequence[Any]], *, in_pieces: bool = False) -> daft.DataFrame:
    """Return a table of ``columns`` in memory, as Daft takes it: whole, or in ``PIECES`` pieces one after the other."""
    import daft  # here: arms without a table don't need it

    table = daft.from_pydict(dict(columns))
    return table.into_batches(max(1, len(next(iter(columns.values()))) // PIECES)) if in_pieces else table


def in_row_order(ids: Sequence[int], texts: Sequence[str | None], rows: int) -> list[str | None]:
    """Return ``texts`` sorted by the row ids they came with.

    Raises:
        ValueError: a row is missing, or came twice.
    """
    if sorted(ids) != list(range(rows)):
        raise ValueError(f"{rows} rows went in; {len(ids)} came out, {len(set(ids))} of them distinct")
    ordered: list[str | None] = [None] * rows
    for row, text in zip(ids, texts, strict=True):
        ordered[row] = text
    return ordered
