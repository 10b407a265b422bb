"""Runs one table through one model, as ``daft-vllm run`` does: asks, writes the answers, reports progress."""

from __future__ import annotations

import contextlib
import functools
import logging
import operator
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Protocol

import daft
from daft import DataFrame, col, lit
from daft.functions import when

from daft_vllm.errors import EngineDiedError, OptionError, suggest
from daft_vllm.folders import RUN_PREFIX, held_folder
from daft_vllm.tables.writing import Written, output_of
from daft_vllm.udf.columns.parts import Messages, image
from daft_vllm.udf.columns.template import parse_template, template, text_of
from daft_vllm.udf.options import PromptOptions
from daft_vllm.udf.progress.board import collect_now
from daft_vllm.udf.progress.display import watching
from daft_vllm.udf.progress.figures import note_job
from daft_vllm.udf.prompt import prompt_expression
from daft_vllm.udf.worker.deaths import is_death, kill_udf_processes, memory_kills, why_killed
from daft_vllm.udf.worker.progress import read_progress
from daft_vllm.udf.worker.stopping import stop_query
from daft_vllm.wording import brief

logger = logging.getLogger("daft_vllm")

DRAIN_SECONDS = 10.0
"""How long rows inside vLLM may take to finish when a job ends early, if their answers are stored."""


@dataclass(frozen=True)
class Summary:
    """What a job did.

    Attributes:
        rows: rows read and written.
        failed: rows without a value, as they were written; rows that were not asked (null prompts, skipped blank ones)
            don't count.
        seconds: wall time, the model's load included.
        prompt_tokens: prompt tokens of the generated rows.
        cached_tokens: those of them that came from the prefix cache.
        completion_tokens: tokens generated.
        drafted_tokens: tokens that were guessed, and verified by vLLM.
        accepted_tokens: those of them that were right. Each saved its row a step.
        optimal_tokens: the fewest prompt tokens that had to be computed, in the best order of the rows.
        stored: rows whose answer was in the store already.
        retried: rows that were asked again; a row counts once for each time.
        duplicates: rows that got the answer of an equal row.
        mean_running: mean number of sequences that vLLM ran at once, per engine.
        preemptions: sequences that vLLM had to put back because the KV cache was full.
        restarts: times that vLLM died and was started again.
        busy_seconds: time with rows inside vLLM, summed over engines.
        queue_seconds: time that rows waited for vLLM, summed over rows.
        notes: for each column that the output holds in another form, what a reader has to know.
        known: whether the counters of all workers came back. If not, because a worker was killed or a part of a Ray
            cluster is gone, all numbers except ``rows``, ``failed`` and ``seconds`` are those of some rows only.
    """

    rows: int
    failed: int
    seconds: float
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    optimal_tokens: int
    stored: int
    retried: int
    duplicates: int
    mean_running: float
    preemptions: int
    restarts: int
    busy_seconds: float
    queue_seconds: float
    notes: Mapping[str, list[str]]
    known: bool = True

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that were computed: those that did not come from the prefix cache."""
        return self.prompt_tokens - self.cached_tokens


class Sink(Protocol):
    """Where the rows of a job go: a file (``Output``) or a screen."""

    @property
    def place(self) -> str:
        """Where the rows go, as the user wrote it."""

    @property
    def notes(self) -> Mapping[str, list[str]]:
        """For each column in another form, what a reader has to know."""

    def check_schema(self, schema: daft.Schema) -> None:
        """Raise ``OptionError`` if it can't hold a column of the table."""

    def write(self, df: DataFrame, errors: str | None = None) -> Written:
        """Run the plan of a table and take its rows. Return how many there were, and how many have an error.

        It is called again if the query is.
        """


@dataclass(frozen=True)
class JobPrompt:
    """The prompts of a job. Make it with ``prompt_of``.

    Attributes:
        messages: the prompts, for ``prompt()``.
        is_null: whether a row has no prompt.
        is_blank: whether one of the texts that fill a row's prompt is blank.
    """

    messages: Messages
    is_null: daft.Expression
    is_blank: daft.Expression


class PromptCounts(NamedTuple):
    """How many rows a table has, and how many of them have null and blank prompts."""

    rows: int
    null: int
    blank: int


def prompt_of(df: DataFrame, text: str, *, images: str | None = None, skip_blank: bool = False) -> JobPrompt:
    """Return the prompts that a template makes of a table.

    Args:
        df: the table.
        text: the template. With ``images`` it may be without columns.
        images: a column of images, paths or URLs, which goes before the text.
        skip_blank: rows with a blank text get a blank prompt, so that ``prompt(skip_blank=True)`` skips them.

    Raises:
        OptionError: the template, or ``images``, names a column that isn't there, or one that can't be used so.
    """
    names = df.schema().column_names()
    if images is not None and images not in names:
        raise OptionError(f"--images {images!r} is not a column.{suggest(images, names)} Columns: {', '.join(names)}.")
    parts = parse_template(text, names, needs_column=images is None)
    fields = list(dict.fromkeys(part.column for part in parts if part.column is not None))
    filled = template(text, df, needs_column=images is None)
    texts = [text_of(name, df.schema()[name].dtype) for name in fields]
    is_null = [one.is_null() for one in (*texts, *([col(images)] if images is not None else []))]
    is_blank = [~one.regexp(r"\S") for one in texts]
    blank = functools.reduce(operator.or_, is_blank, lit(False))
    if skip_blank and fields:
        filled = when(blank, lit("")).otherwise(filled)
    messages: Messages = filled if images is None else [image(col(images)), filled]
    return JobPrompt(messages, functools.reduce(operator.or_, is_null), blank)


def with_row_key(options: PromptOptions, df: DataFrame, key: str | None) -> PromptOptions:
    """Return the options with the column that names each row. None: none does.

    Raises:
        OptionError: it is no column, or there is no store.
    """
    if key is None:
        return options
    names = df.schema().column_names()
    if key not in names:
        raise OptionError(f"--key {key!r} is not a column.{suggest(key, names)} Columns: {', '.join(names)}.")
    if options.store is None:
        raise OptionError(
            "--key names the rows of a store, and this job has none: pass --store FOLDER too, or leave it out."
        )
    return replace(options, row_key=col(key))


def count_prompts(df: DataFrame, prompt: JobPrompt) -> PromptCounts:
    """Read the table once, and count its rows and their prompts. What can't be read is found here, before a load."""
    null = when(prompt.is_null, lit(1)).otherwise(lit(0)).alias("null")
    blank = when(~prompt.is_null & prompt.is_blank, lit(1)).otherwise(lit(0)).alias("blank")
    counted = df.select(null, blank).agg(col("null").count().alias("rows"), col("null").sum(), col("blank").sum())
    (row,) = counted.to_pylist()
    return PromptCounts(row["rows"], row["null"] or 0, row["blank"] or 0)


def run_job(
    df: DataFrame,
    messages: Messages,
    output: str | Sink,
    *,
    options: PromptOptions,
    column: str = "answer",
    error_column: str = "error",
    overwrite: bool = False,
    watch: Callable[[Mapping[str, float]], None] | None = None,
    begin: Callable[[], object] = lambda: None,
    folder: str | None = None,
    rows: int | None = None,
) -> Summary:
    """Answer every row of ``df`` and write it with two more columns to ``output``.

    Args:
        df: the table; all its columns are kept.
        messages: the prompts.
        output: a file, a folder or a URL, as ``output_of`` takes it; or an object that takes the rows.
        options: the options of ``prompt()``.
        column: name of the answers' column.
        error_column: name of the column with the reason why a row has no answer. It is null for rows that have one, and
            for rows that were not asked.
        overwrite: replace an output that exists.
        watch: called about twice a second with the engines' counters (names: ``EngineStats``, and ``workers``).
        begin: called once, when everything is checked that can be checked before the load.
        folder: an empty folder for the engines' counters, by which ``stop_query`` finds them. It is held. Default: a
            temporary one.
        rows: how many rows ``df`` has, for ``daft-vllm top``. None: it isn't known.

    If it fails, its engines stop: with a store, the rows inside vLLM finish first, for up to ``DRAIN_SECONDS``.

    Raises:
        OptionError: a column's name is taken, or the output can't be written, exists, or can't hold a column.
        OutputError: the disk is full, for example.
        EngineDiedError: a process with an engine was killed: with a store, after ``max_restarts`` more tries.
    """
    if column == error_column:
        raise OptionError(f"the answers and the errors need a column each, and both are {column!r}: rename one.")
    for name in (column, error_column):
        if not name.strip():
            raise OptionError("a new column has no name: write for example answer.")
        if name in df.schema().column_names():
            raise OptionError(f"the input has a column {name!r} already: choose other names for the new columns.")
    sink: Sink = output_of(output, overwrite=overwrite) if isinstance(output, str) else output
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        counted = folder or stack.enter_context(held_folder(RUN_PREFIX))
        note_job(counted, str(options.model), output=sink.place, rows=rows)
        stack.enter_context(watching(lambda: read_progress(counted), watch))
        whole = "__daft_vllm__"
        expression = prompt_expression(messages, replace(options, details=True, progress_folder=counted))
        answered = df.with_column(whole, expression)
        result = answered.with_columns({column: col(whole).get("value"), error_column: col(whole).get("error")})
        result = result.exclude(whole)
        sink.check_schema(result.schema())
        begin()
        written = _written(sink, result, error_column, options, counted)
        collect_now(counted)
        counters = read_progress(counted)
    return Summary(
        rows=written.rows,
        failed=written.failed,
        seconds=time.monotonic() - started,
        prompt_tokens=int(counters["prompt_tokens"]),
        cached_tokens=int(counters["cached_tokens"]),
        completion_tokens=int(counters["completion_tokens"]),
        drafted_tokens=int(counters["drafted_tokens"]),
        accepted_tokens=int(counters["accepted_tokens"]),
        optimal_tokens=int(counters["optimal_tokens"]),
        stored=int(counters["stored"]),
        retried=int(counters["retried"]),
        duplicates=int(counters["duplicates"]),
        mean_running=counters["mean_running"],
        preemptions=int(counters["preemptions"]),
        restarts=int(counters["restarts"]),
        busy_seconds=counters["busy_seconds"],
        queue_seconds=counters["queue_seconds"],
        notes=sink.notes,
        known=counters["done"] >= written.rows,
    )


def _written(sink: Sink, df: DataFrame, errors: str, options: PromptOptions, folder: str) -> Written:
    """Run the query. If one of its processes is killed, run it again from its store."""
    kills, restarts = memory_kills(), 0
    while True:
        try:
            return sink.write(df, errors)
        except Exception as e:
            if not is_death(e):
                stop_query(folder, DRAIN_SECONDS if options.store is not None else 0.0)
                raise
            why, kills = why_killed(kills), memory_kills()
            # What Daft has left of the query would answer rows beside the next try, and keep memory and GPUs.
            kill_udf_processes()
            if options.store is None or restarts == options.max_restarts:
                again = f" The query was run {restarts + 1} times." if restarts else ""
                with_store = " With store= a query goes on after that." if options.store is None else ""
                raise EngineDiedError(
                    f"the process with the engine is gone, with rows unanswered: {why}.{again} Give the job more "
                    f"memory, or pass a smaller max_concurrency= or batch_size=.{with_store} Daft says: {brief(e, 200)}"
                ) from None
            restarts += 1
            logger.warning(
                "The process with the engine is gone: %s. The query is run again and goes on from its store, for the "
                "%d. of at most %d times.",
                *(why, restarts, options.max_restarts),
            )
            collect_now(folder)  # what the dead ones have reported
            for path in Path(folder).glob("*.json"):
                path.unlink(missing_ok=True)  # its rows are counted again, as stored ones
