"""The command ``daft-vllm``."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

app = typer.Typer(
    help="Answer every row of a table with a language model that runs here.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
console = Console(stderr=True)


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
            "return_format": _return_format(schema, choices),
            "system_message": system,
            "model": model,
            "gpus": gpus,
            "use_process": True if keep_order else "auto",
            "max_concurrency": max_concurrency,
            "engine_args": _json_object("--engine-args", engine_args),
            "max_tokens": max_tokens,
            "temperature": temperature,
            "retries": retries,
        }
        _quiet()
        from daft_vllm.job import read_table
        from daft_vllm.udf.shared_first import shared_first as put_shared_first
        from daft_vllm.udf.template import template

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
        _fail(str(e))
    except Exception as e:
        cause = _own_cause(e)
        if cause is None:
            raise
        _fail(str(cause))
    if failed and on_error is OnError.raise_:
        _fail(f"{failed} rows have no answer; the column {error_column!r} of {output} says why.")


@app.command()
def demo(
    output: Annotated[str, typer.Option(help="Where the table goes.")] = "out/demo.parquet",
    model: Annotated[str, typer.Option(help="A folder, a name on the hub, or smollm2-135m.")] = "smollm2-135m",
    limit: Annotated[int | None, typer.Option(min=1, help="Take only the first N packages.")] = None,
) -> None:
    """Describe and classify every installed Python package, in typed columns."""
    _quiet()
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
        _fail(f"{failed} rows have no label; the column 'error' of {output} says why.")


@app.command()
def config(
    model: Annotated[str, typer.Argument(help="A short name, a name on the hub, or a folder.")],
    gpu: Annotated[str | None, typer.Option(help="Card to plan for: L4, A10G, A100-40, A100-80, H100, H200.")] = None,
    gpus: Annotated[float, typer.Option(help="GPUs of each engine, or a share of one.")] = 1,
    goal: Annotated[str | None, typer.Option(help="throughput, long-context or images.")] = None,
    engine_args: Annotated[str, typer.Option(help="vLLM's engine arguments as JSON.")] = "{}",
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Prompt tokens of a row.")] = 512,
    shared_tokens: Annotated[int, typer.Option(min=0, help="Those of them that rows share.")] = 0,
    output_tokens: Annotated[int, typer.Option(min=1, help="Output tokens of a row.")] = 128,
    rows: Annotated[int, typer.Option(min=0, help="Rows of the job.")] = 0,
    dollars_per_hour: Annotated[float, typer.Option(min=0, help="Price of one GPU.")] = 0.0,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a model is started with and why, whether it fits a card, and how fast it can be. Loads no weights."""
    from daft_vllm.errors import DaftVLLMError

    _quiet()
    try:
        from daft_vllm.config_command import print_shown, shown
        from daft_vllm.engine.config import check_engine_args

        args = _json_object("--engine-args", engine_args)
        check_engine_args(args)
        what = shown(
            model,
            gpu=gpu,
            gpus=gpus,
            goal=goal,
            engine_args=args,
            shape=(prompt_tokens, min(shared_tokens, prompt_tokens), output_tokens),
            rows=rows,
            dollars_per_hour=dollars_per_hour,
        )
    except DaftVLLMError as e:
        _fail(str(e))
        return
    if json_output:
        typer.echo(json.dumps(what.as_dict(), indent=2, default=str))
    else:
        print_shown(what, Console())
    if what.plan is not None and not what.plan.fits:
        raise typer.Exit(1)


@app.command()
def check(
    model: Annotated[str, typer.Argument(help="A short name, a name on the hub, or a folder.")],
    gpu: Annotated[str | None, typer.Option(help="Card to plan for. Default: the one that is here.")] = None,
    gpus: Annotated[float | None, typer.Option(help="GPUs of each engine.")] = None,
    engines: Annotated[int, typer.Option(min=1, help="Engines in all.")] = 1,
    goal: Annotated[str | None, typer.Option(help="throughput, long-context or images.")] = None,
    engine_args: Annotated[str, typer.Option(help="vLLM's engine arguments as JSON.")] = "{}",
    input: Annotated[str | None, typer.Option(help="The table: its first rows are looked at.")] = None,
    prompt: Annotated[str | None, typer.Option(help="The prompt, with columns in braces.")] = None,
    images: Annotated[str | None, typer.Option(help="A column of images that goes before the prompt.")] = None,
    schema: Annotated[Path | None, typer.Option(help="File with a JSON Schema that every answer satisfies.")] = None,
    choices: Annotated[str | None, typer.Option(help="The only answers allowed, separated by commas.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 1024,
    ray: Annotated[bool, typer.Option(help="Look at the Ray cluster of RAY_ADDRESS.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say whether a job will run, and what to change if not, before the model is loaded. Exit status 1: it won't."""
    from daft_vllm.errors import DaftVLLMError, OptionError

    _quiet()
    try:
        import daft

        from daft_vllm.job import read_table
        from daft_vllm.udf.check import check as check_job
        from daft_vllm.udf.parts import image
        from daft_vllm.udf.template import template

        if input is None and (prompt is not None or images is not None):
            raise OptionError("--prompt and --images are about a table: --input names it.")
        if ray:
            daft.set_runner_ray()
        df = read_table(input) if input is not None else None
        messages: Any = [image(daft.col(images))] if images is not None else []
        if df is not None and prompt is not None:
            messages.append(template(prompt, df))
        report = check_job(
            messages or None,
            _return_format(schema, choices),
            df=df,
            model=model,
            gpu=gpu,
            gpus=gpus,
            max_concurrency=engines,
            goal=goal,
            engine_args=_json_object("--engine-args", engine_args),
            max_tokens=max_tokens,
        )
    except DaftVLLMError as e:
        _fail(str(e))
        return
    if json_output:
        typer.echo(json.dumps(report.as_dict(), indent=2))
    else:
        colours = {"ok": "green", "warning": "yellow", "failure": "red", "skipped": "dim"}
        shown = Table("", "", "", show_header=False, title=f"check {model}")
        for one in report.checks:
            shown.add_row(f"[{colours[one.status]}]{one.status}[/]", one.name, Text(one.seen))
        Console().print(shown)
    if not report.ok:
        raise typer.Exit(1)


def _run(df: Any, messages: Any, output: str, **options: Any) -> int:
    """Run a job with progress and a summary on stderr; return how many rows failed."""
    from daft_vllm.job import run_job

    total = df.count_rows()
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


def _return_format(schema: Path | None, choices: str | None) -> Any:
    if choices is not None:
        return [choice.strip() for choice in choices.split(",")]
    if schema is None:
        return None
    from daft_vllm.errors import OptionError

    try:
        text = schema.read_text(encoding="utf-8")
    except OSError as e:
        raise OptionError(f"--schema: {e}") from e
    return _json_object("--schema", text)


def _json_object(option: str, text: str) -> dict[str, Any]:
    from daft_vllm.errors import OptionError

    try:
        value = json.loads(text)
    except ValueError as e:
        raise OptionError(f"{option} is not JSON: {e}") from e
    if not isinstance(value, dict):
        raise OptionError(f"{option} is a JSON object, got {type(value).__name__}.")
    return value


def _quiet() -> None:
    """Keep the screen for progress: vLLM's warnings and Daft's bars are shown only to those who ask for them."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("DAFT_PROGRESS_BAR", "0")
    logging.basicConfig(level=logging.WARNING, format="%(message)s")


def _own_cause(error: BaseException) -> BaseException | None:
    """Return the error of ours that Daft has wrapped, if there is one."""
    from daft_vllm.errors import DaftVLLMError

    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, DaftVLLMError):
        seen = seen.__cause__ or seen.__context__
    return seen


def _fail(message: str) -> None:
    console.print(f"error: {message}", style="red", highlight=False, markup=False)
    raise typer.Exit(1)
