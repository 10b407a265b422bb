"""The command ``daft-vllm``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from daft_vllm import planning_commands
from daft_vllm.terminal import console, engine_args_of, fail, own_cause, quiet, return_format

SHORT_JOB = 256, 1024
"""Rows of a short job, and output tokens of each, at most: what vLLM answers at once, in so many steps.

Without CUDA graphs a step of Llama-3.1-8B on an H100 takes 8.4 ms in place of 5.1 (cloudai.pt, "CUDA Graphs +
torch.compile"), these steps 3.4 s more; to compile and to capture takes 30 s and more (SkyRL pull request 2138).
"""

app = typer.Typer(
    help="Answer every row of a table with a language model that runs here.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


class OnError(StrEnum):
    """What failed rows do to the exit status."""

    null = "null"
    raise_ = "raise"


@app.command()
def run(
    input: Annotated[str, typer.Option(help="Parquet, CSV or JSON lines: a file, a glob or an object-store URL.")],
    output: Annotated[str, typer.Option(help="A .parquet or .jsonl file, or a folder or URL for Parquet.")],
    prompt: Annotated[str, typer.Option(help="The prompt, with columns in braces: 'Summarise: {text}'.")],
    model: Annotated[str, typer.Option(help="A folder, a name on the hub, or smollm2-135m.")] = "smollm2-135m",
    schema: Annotated[Path | None, typer.Option(help="File with a JSON Schema that every answer satisfies.")] = None,
    choices: Annotated[str | None, typer.Option(help="The only answers allowed, separated by commas.")] = None,
    system: Annotated[str | None, typer.Option(help="Instructions put before every prompt.")] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="Take only the first N rows.")] = None,
    shared_first: Annotated[
        bool, typer.Option(help="Put the prompt's lines into the order in which rows share the longest prefixes.")
    ] = False,
    keep_order: Annotated[
        bool, typer.Option(help="Write rows in the input's order; the engine then takes one batch at a time.")
    ] = False,
    column: Annotated[str, typer.Option(help="Name of the answers' column.")] = "answer",
    error_column: Annotated[str, typer.Option(help="Name of the column with the reason of a failure.")] = "error",
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 1024,
    temperature: Annotated[float, typer.Option(min=0, help="0 takes the likeliest token each time.")] = 0.0,
    gpus: Annotated[float | None, typer.Option(help="GPUs of each engine. Default: 1 if there is one, else 0.")] = None,
    max_concurrency: Annotated[int, typer.Option(min=1, help="Engines in all.")] = 1,
    retries: Annotated[
        int, typer.Option(min=0, help="Ask again so often for a row that was cut off or is invalid.")
    ] = 0,
    engine_args: Annotated[str, typer.Option(help="""vLLM's engine arguments as JSON: '{"dtype": "half"}'.""")] = "{}",
    goal: Annotated[
        str | None,
        typer.Option(
            help="throughput, long-context, images, text or short-job. Default: short-job for a few hundred rows."
        ),
    ] = None,
    on_error: Annotated[
        OnError, typer.Option(help="raise: exit status 1 if a row failed; all rows are written either way.")
    ] = OnError.null,
) -> None:
    """Answer every row of a table; all its columns are kept."""
    from daft_vllm.errors import DaftVLLMError, OptionError

    try:
        if schema is not None and choices is not None:
            raise OptionError("--schema and --choices exclude each other.")
        options: dict[str, Any] = {
            "return_format": return_format(schema, choices),
            "system_message": system,
            "model": model,
            "gpus": gpus,
            "use_process": True if keep_order else "auto",
            "max_concurrency": max_concurrency,
            "engine_args": engine_args_of(engine_args),
            "goal": goal,
            "max_tokens": max_tokens,
            "temperature": temperature,
            "retries": retries,
        }
        quiet()
        from daft_vllm.job import read_table
        from daft_vllm.udf.columns.shared_first import shared_first as put_shared_first
        from daft_vllm.udf.columns.template import template

        df = read_table(input)
        if shared_first:
            plan = put_shared_first(df, prompt)
            console.print(f"shared fields first: {plan}", highlight=False)
            prompt = plan.template
        messages = template(prompt, df)
        if limit is not None:
            df = df.limit(limit)
        failed = _run(df, messages, output, column=column, error_column=error_column, **options)
    except DaftVLLMError as e:
        fail(str(e))
    except Exception as e:
        cause = own_cause(e)
        if cause is None:
            raise
        fail(str(cause))
    if failed and on_error is OnError.raise_:
        fail(f"{failed} rows have no answer; the column {error_column!r} of {output} says why.")


@app.command()
def demo(
    output: Annotated[str, typer.Option(help="Where the table goes.")] = "out/demo.parquet",
    model: Annotated[str, typer.Option(help="A folder, a name on the hub, or smollm2-135m.")] = "smollm2-135m",
    limit: Annotated[int | None, typer.Option(min=1, help="Take only the first N packages.")] = None,
) -> None:
    """Describe and classify every installed Python package, in typed columns."""
    quiet()
    import pyarrow.parquet as pq
    from daft import col, lit

    from daft_vllm.demo import SYSTEM_MESSAGE, Label, package_table

    df = package_table()
    if limit is not None:
        df = df.limit(limit)
    messages = lit("Package ") + col("name") + lit(": ") + col("summary")
    failed = _run(
        df,
        messages,
        output,
        column="label",
        return_format=Label,
        system_message=SYSTEM_MESSAGE,
        model=model,
        max_tokens=128,
        engine_args={"max_model_len": 2048},
    )
    table = pq.read_table(output)
    shown = Table("name", "category", "audience", "description", title=f"{output}: {table.num_rows} rows")
    for row in table.slice(0, 20).to_pylist():
        label = row["label"] or {}
        shown.add_row(
            row["name"], label.get("category"), label.get("audience"), label.get("description") or row["error"]
        )
    Console().print(shown)
    if failed:
        fail(f"{failed} rows have no label; the column 'error' of {output} says why.")


def _run(df: Any, messages: Any, output: str, **options: Any) -> int:
    """Run a job with progress and a summary on stderr; return how many rows failed."""
    from daft_vllm.job import run_job

    total = df.count_rows()
    if options.get("goal") is None and total <= SHORT_JOB[0] and options["max_tokens"] <= SHORT_JOB[1]:
        options["goal"] = "short-job"
    console.print(f"{total} rows, model {options['model']}: loading", highlight=False)
    with _Watch(total) as watch:
        summary = run_job(df, messages, output, watch=watch, **options)
    table = Table(title=output, show_header=False)
    table.add_row("rows", str(summary.rows))
    table.add_row("rows without a value", str(summary.failed))
    table.add_row("seconds, load included", f"{summary.seconds:.1f}")
    table.add_row("prompt tokens", f"{summary.prompt_tokens}")
    table.add_row("of them from the prefix cache", f"{_share(summary.cached_tokens, summary.prompt_tokens):.0%}")
    table.add_row("computed, and the least possible", f"{summary.computed_tokens}, {summary.optimal_tokens}")
    table.add_row("completion tokens", f"{summary.completion_tokens}")
    table.add_row("rows asked again", f"{summary.retried}")
    table.add_row("rows answered like another", f"{summary.duplicates}")
    table.add_row("sequences at once, on average", f"{summary.mean_running:.1f}")
    table.add_row("sequences put back for lack of KV cache", f"{summary.preemptions}")
    table.add_row("times that vLLM died and was started again", f"{summary.restarts}")
    table.add_row("seconds with rows in vLLM", f"{summary.busy_seconds:.1f}")
    table.add_row("a row's wait for vLLM, on average", f"{summary.queue_seconds / max(1, summary.rows):.1f} s")
    console.print(table)
    return summary.failed


class _Watch:
    """The progress line. Where stderr is no terminal, a plain line every ten seconds."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._first: float | None = None
        self._said = time.monotonic()
        self._bar = Progress(
            SpinnerColumn(),
            BarColumn(20),
            TextColumn("{task.completed:.0f}/{task.total:.0f} rows  {task.fields[rates]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task("rows", total=total, rates="")

    def __enter__(self) -> _Watch:
        if console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._bar.stop()

    def __call__(self, counters: Mapping[str, float]) -> None:
        done = counters["done"]
        if counters["rows"] and self._first is None:
            self._first = time.monotonic()
        seconds = time.monotonic() - self._first if self._first is not None else 0.0
        tokens = counters["prompt_tokens"] + counters["completion_tokens"]
        rates = (
            f"{done / seconds:.1f} rows/s  {tokens / seconds:.0f} tokens/s  "
            f"{_share(counters['cached_tokens'], counters['prompt_tokens']):.0%} cached"
            if seconds > 0
            else "loading"
        )
        self._bar.update(self._task, completed=done, rates=rates)
        if not console.is_terminal and self._first is not None and time.monotonic() - self._said >= 10:
            self._said = time.monotonic()
            left = f"{(self._total - done) * seconds / done:.0f} s left" if done else "time left unknown"
            console.print(f"{done:.0f}/{self._total} rows  {rates}  {left}", highlight=False)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


for _name in ("check", "config", "models", "plan", "tune"):
    app.command()(getattr(planning_commands, _name))
