"""``daft-vllm check``: finds out whether a job will run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from daft_vllm.cli.names import complete_card, complete_model
from daft_vllm.cli.options import options_of
from daft_vllm.cli.terminal import GPU, GPU_MEMORY, as_flags, fail, quiet, return_format


def check(
    model: Annotated[
        str,
        typer.Argument(help="A short name, a name on the hub, or a folder.", autocompletion=complete_model),
    ],
    given: Mapping[str, Any],
    gpu: Annotated[
        str | None,
        typer.Option(help=f"{GPU} Default: this machine's card.", autocompletion=complete_card),
    ] = None,
    gpu_memory: Annotated[str | None, typer.Option(help=GPU_MEMORY)] = None,
    input: Annotated[str | None, typer.Option(help="The table. Its first rows are checked.")] = None,
    prompt: Annotated[str | None, typer.Option(help="The prompt, with columns in braces.")] = None,
    images: Annotated[str | None, typer.Option(help="A column of images that goes before the prompt.")] = None,
    schema: Annotated[Path | None, typer.Option(help="File with a JSON Schema that every answer satisfies.")] = None,
    choices: Annotated[str | None, typer.Option(help="The only answers allowed, separated by commas.")] = None,
    ray: Annotated[bool, typer.Option(help="Check the Ray cluster of RAY_ADDRESS too.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find out whether a job will run, and if not, what to change. Loads no model. Exit status 1: it won't run."""
    from daft_vllm.errors import DaftVLLMError, OptionError

    quiet()
    try:
        import daft

        from daft_vllm.job import prompt_of
        from daft_vllm.tables.reading import explained, read_input
        from daft_vllm.udf.check import check as check_job
        from daft_vllm.udf.columns.parts import Messages, image

        if input is None and (prompt is not None or images is not None):
            raise OptionError("--prompt and --images need a table: pass --input.")
        if ray:
            daft.set_runner_ray()
        table = read_input(input) if input is not None else None
        messages: Messages | None = None
        if table is not None:
            images = images or table.images
            if prompt is not None:
                messages = prompt_of(table.df, prompt, images=images).messages
            elif images is not None:
                messages = [image(daft.col(images))]
        with explained(input or ""):
            report = check_job(
                messages,
                return_format(schema, choices),
                df=table.df if table is not None else None,
                gpu=gpu,
                gpu_memory=gpu_memory,
                **options_of(given, model=model),
            )
    except DaftVLLMError as e:
        fail(str(e))
        return
    if json_output:
        typer.echo(json.dumps(report.as_dict(), indent=2))
    else:
        colours = {"ok": "green", "warning": "yellow", "failure": "red", "skipped": "dim"}
        shown = Table("", "", "", show_header=False, title=f"check {model}")
        skipped: dict[str, list[str]] = {}
        for one in report.checks:
            if one.status == "skipped":
                skipped.setdefault(one.seen, []).append(one.name)
            else:
                shown.add_row(f"[{colours[one.status]}]{one.status}[/]", one.name, Text(as_flags(one.seen)))
        for why, names in skipped.items():
            shown.add_row("[dim]skipped[/]", ", ".join(names), Text(why))
        Console().print(shown)
        Console().print(report.verdict, highlight=False, markup=False)
    if not report.ok:
        raise typer.Exit(1)
