"""``daft-vllm run``: answers every row of a table."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from daft_vllm.cli.terminal import console, engine_args_of, fail, option, own_cause, quiet, return_format
from daft_vllm.cli.watching import run_with_progress
from daft_vllm.udf.options import DEFAULT, PromptOptions, option_default


class OnError(StrEnum):
    """What failed rows do to the exit status."""

    null = "null"
    raise_ = "raise"


def run(
    input: Annotated[str, typer.Option(help="Parquet, CSV or JSON lines: a file, a glob or an object-store URL.")],
    output: Annotated[str, typer.Option(help="A .parquet or .jsonl file, or a folder or URL for Parquet.")],
    prompt: Annotated[str, typer.Option(help="The prompt, with columns in braces: 'Summarise: {text}'.")],
    model: Annotated[str, option("model")] = DEFAULT.model,
    schema: Annotated[Path | None, typer.Option(help="File with a JSON Schema that every answer satisfies.")] = None,
    choices: Annotated[str | None, typer.Option(help="The only answers allowed, separated by commas.")] = None,
    system: Annotated[str | None, option("system_message")] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="Take only the first N rows.")] = None,
    shared_first: Annotated[
        bool, typer.Option(help="Reorder the prompt's lines so that rows share the longest prefixes.")
    ] = False,
    keep_order: Annotated[
        bool, typer.Option(help="Write rows in the input's order. The engine then gets one batch at a time.")
    ] = False,
    column: Annotated[str, typer.Option(help="Name of the column for the answers.")] = "answer",
    error_column: Annotated[str, typer.Option(help="Name of the column for the reasons of failures.")] = "error",
    max_tokens: Annotated[int, option("max_tokens", min=1)] = option_default("max_tokens"),
    temperature: Annotated[float, option("temperature", min=0)] = option_default("temperature"),
    gpus: Annotated[float | None, option("gpus")] = DEFAULT.gpus,
    max_concurrency: Annotated[int, option("max_concurrency", min=1)] = DEFAULT.max_concurrency,
    retries: Annotated[int, option("retries", min=0)] = DEFAULT.retries,
    engine_args: Annotated[str, option("engine_args", """JSON: '{"dtype": "half"}', or @file of tune's.""")] = "{}",
    goal: Annotated[str | None, option("goal", "Default: short-job for a few hundred rows.")] = DEFAULT.goal,
    on_error: Annotated[
        OnError, typer.Option(help="raise: exit status 1 if a row failed. All rows are written in any case.")
    ] = OnError.null,
) -> None:
    """Answer every row of a table. All columns of the table are kept."""
    from daft_vllm.errors import DaftVLLMError, OptionError

    try:
        if schema is not None and choices is not None:
            raise OptionError("--schema and --choices exclude each other: pass one of them.")
        quiet()
        options = PromptOptions(
            return_format=return_format(schema, choices),
            system_message=system,
            model=model,
            gpus=gpus,
            use_process=True if keep_order else "auto",
            max_concurrency=max_concurrency,
            engine_args=engine_args_of(engine_args),
            goal=goal,
            retries=retries,
            sampling={"max_tokens": max_tokens, "temperature": temperature},
        )
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
        failed = run_with_progress(df, messages, output, options, column=column, error_column=error_column)
    except DaftVLLMError as e:
        fail(str(e))
    except Exception as e:
        cause = own_cause(e)
        if cause is None:
            raise
        fail(str(cause))
    if failed and on_error is OnError.raise_:
        fail(f"{failed} rows have no answer; the column {error_column!r} of {output} says why.")
