"""``daft-vllm run``: every row of a table, answered."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from daft_vllm.cli.terminal import console, engine_args_of, fail, own_cause, quiet, return_format
from daft_vllm.cli.watching import run_watched


class OnError(StrEnum):
    """What failed rows do to the exit status."""

    null = "null"
    raise_ = "raise"


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
        failed = run_watched(df, messages, output, column=column, error_column=error_column, **options)
    except DaftVLLMError as e:
        fail(str(e))
    except Exception as e:
        cause = own_cause(e)
        if cause is None:
            raise
        fail(str(cause))
    if failed and on_error is OnError.raise_:
        fail(f"{failed} rows have no answer; the column {error_column!r} of {output} says why.")
