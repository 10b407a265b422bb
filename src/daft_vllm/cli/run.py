"""``daft-vllm run``: answers every row of a table."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from daft_vllm.cli.options import options_of
from daft_vllm.cli.retry import remember
from daft_vllm.cli.terminal import console, fail, own_cause, quiet, return_format
from daft_vllm.cli.watching import run_with_progress
from daft_vllm.udf.options import PromptOptions

if TYPE_CHECKING:
    from daft_vllm.cli.stopping.store import Store
    from daft_vllm.tables.writing import Output


class OnError(StrEnum):
    """What failed rows do to the exit status."""

    null = "null"
    raise_ = "raise"


def run(
    context: typer.Context,
    input: Annotated[
        str,
        typer.Option(
            help="Parquet, CSV, TSV or JSON lines, or images: a file, a glob, a folder or an object-store URL."
        ),
    ],
    prompt: Annotated[str, typer.Option(help="The prompt, with columns in braces: 'Summarise: {text}'.")],
    given: Mapping[str, Any],
    output: Annotated[
        str | None,
        typer.Option(help="A .parquet, .jsonl, .csv or .tsv file; or a folder or URL for Parquet files."),
    ] = None,
    preview: Annotated[
        int | None, typer.Option(min=1, help="Show the answers to the first N rows on the screen. Nothing is written.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an output that exists.")] = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Go on where an earlier job with this output stopped. If it is complete, nothing is done."
        ),
    ] = False,
    no_store: Annotated[
        bool, typer.Option("--no-store", help="Keep no answers while the job runs: if it stops, it can't go on.")
    ] = False,
    schema: Annotated[Path | None, typer.Option(help="File with a JSON Schema that every answer satisfies.")] = None,
    choices: Annotated[str | None, typer.Option(help="The only answers allowed, separated by commas.")] = None,
    images: Annotated[
        str | None, typer.Option(help="A column of images, paths or URLs; it goes before the prompt.")
    ] = None,
    files: Annotated[
        list[Path] | None, typer.Option(help="A folder that local paths in the table may lead to. May be repeated.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="Take only the first N rows.")] = None,
    keep_empty: Annotated[
        bool,
        typer.Option("--keep-empty", help="Take an empty cell of a CSV or TSV file as an empty text, not as null."),
    ] = False,
    shared_first: Annotated[
        bool, typer.Option("--shared-first", help="Reorder the prompt's lines so that rows share the longest prefixes.")
    ] = False,
    keep_order: Annotated[
        bool,
        typer.Option("--keep-order", help="Write rows in the input's order. The engine then gets one batch at a time."),
    ] = False,
    key: Annotated[
        str | None, typer.Option(help="A column that names each row in the store.", metavar="COLUMN")
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            help="Run on a Ray cluster: auto, host:port, ray://host:port, or local for a Ray of this job's own.",
            metavar="ADDRESS",
        ),
    ] = None,
    column: Annotated[str, typer.Option(help="Name of the column for the answers.")] = "answer",
    error_column: Annotated[str, typer.Option(help="Name of the column for the reasons of failures.")] = "error",
    on_error: Annotated[
        OnError, typer.Option(help="raise: exit status 1 if a row failed. All rows are written in any case.")
    ] = OnError.null,
    dollars_per_hour: Annotated[
        float, typer.Option(min=0, help="Price of one GPU, or of a machine without GPUs: shows what the job cost.")
    ] = 0.0,
) -> None:
    """Answer every row of a table. All columns of the table are kept.

    While it runs, answers are kept beside a local output, in OUTPUT.answers-store. If it stops, --resume goes on.
    """
    from daft_vllm.errors import DaftVLLMError, OptionError

    store: Store | None = None
    try:
        if schema is not None and choices is not None:
            raise OptionError("--schema and --choices exclude each other: pass one of them.")
        if output is None and preview is None:
            raise OptionError(
                "there is no output: pass --output answers.parquet, or --preview 5 to look at a few answers."
            )
        quiet()
        from daft_vllm.cli.preview import Screen
        from daft_vllm.cli.stopping.signals import SignalHandler
        from daft_vllm.cli.stopping.store import check_resume, store_of
        from daft_vllm.job import count_prompts, prompt_of, with_row_key
        from daft_vllm.tables.reading import explained, read_input
        from daft_vllm.udf.columns.files import FileAccess
        from daft_vllm.udf.columns.shared_first import shared_first as put_shared_first
        from daft_vllm.udf.preflight.connection import connect

        with contextlib.ExitStack() as stack:
            signals = stack.enter_context(SignalHandler())
            if ray is not None:  # before anything asks where Daft runs its queries
                connect(ray)
                signals.install_again()
            table = read_input(input, keep_empty=keep_empty)
            folders = [*table.folders, *map(str, files or ())]
            more = {
                "return_format": return_format(schema, choices),
                "files": FileAccess(folders=folders) if folders else None,
                "use_process": True if keep_order else "auto",
            }
            options = PromptOptions.of(options_of(given, **more))
            df = table.df
            check_resume(None if preview is not None else output, options.store, keep=not no_store, resume=resume)
            sink: Any = Screen(column, error_column)
            if preview is None and output is not None:
                sink = _claimed(output, stack, overwrite=overwrite, resume=resume)
                store = store_of(sink, options.store, keep=not no_store, resume=resume, overwrite=overwrite)
                if store is not None:
                    options = replace(options, store=store.place)
                    sink = replace(sink, before_placing=store.note_complete)
                    signals.last_words, signals.keeps_answers = store.left, True
                signals.cleaners.append(sink.release)
            options = with_row_key(options, df, key)
            if shared_first:
                with explained(input):
                    plan = put_shared_first(df, prompt)
                console.print(f"shared fields first: {plan}", highlight=False)
                prompt = plan.template
            asked = prompt_of(df, prompt, images=images or table.images, skip_blank=options.skip_blank)
            if limit is not None or preview is not None:
                df = df.limit(min(n for n in (limit, preview) if n is not None))
            with explained(input):
                counts = count_prompts(df, asked)
            if preview is None:
                sink = replace(sink, least=counts.rows)
            failed = run_with_progress(
                df,
                asked.messages,
                sink,
                options,
                column=column,
                error_column=error_column,
                counts=counts,
                dollars_per_hour=dollars_per_hour,
                signals=signals,
                begin=partial(remember, context, options.store if preview is None else None),
            )
            if store is not None and failed and options.limits.past_deadline() is not None:
                console.print(store.keep(), highlight=False, markup=False)
            elif store is not None:
                store.finish()
    except DaftVLLMError as e:
        fail(str(e), _left(store, e))
    except Exception as e:
        cause = own_cause(e)
        if cause is None:
            if left := _left(store, e):
                console.print(left, highlight=False, soft_wrap=True)
            raise
        fail(str(cause), _left(store, cause))
    if failed and on_error is OnError.raise_:
        from daft_vllm.wording import counted

        rows = counted(failed, "row has", "rows have")
        fail(f"{rows} no answer; the column {error_column!r} of {sink.place} says why.")


def _claimed(place: str, stack: contextlib.ExitStack, *, overwrite: bool, resume: bool) -> Output:
    """Return the output, which no other job may write until the stack is closed. End if it is complete already."""
    from daft_vllm.cli.stopping.store import is_complete
    from daft_vllm.errors import OptionError
    from daft_vllm.tables.writing import output_of

    output = output_of(place, overwrite=overwrite or (resume and "://" not in place))
    stack.enter_context(output.claimed())
    if resume and not overwrite and is_complete(output):
        console.print(
            f"{place} is complete already: nothing to do. --overwrite computes it anew.",
            highlight=False,
            soft_wrap=True,
        )
        raise typer.Exit()
    if not overwrite and not resume and output.exists():  # another job has finished it just before the claim
        raise OptionError(f"{place} exists already: choose another name, or pass --overwrite.")
    return output


def _left(store: Store | None, error: BaseException) -> str:
    """Return what is kept after an error, and what to do."""
    from daft_vllm.errors import StoreError

    left = store.left() if store is not None else ""
    if store is not None and store.is_own and isinstance(error, StoreError) and not left:
        return "Pass --store FOLDER to keep answers elsewhere, or --no-store to keep none."
    return left
