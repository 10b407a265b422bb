"""``daft-vllm check``: finds out whether a job will run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from daft_vllm.cli.terminal import GPU, GPU_MEMORY, engine_args_of, fail, option, quiet, return_format
from daft_vllm.udf.options import DEFAULT, option_default


def check(
    model: Annotated[str, typer.Argument(help="A short name, a name on the hub, or a folder.")],
    gpu: Annotated[str | None, typer.Option(help=f"{GPU} Default: this machine's card.")] = None,
    gpu_memory: Annotated[float | None, typer.Option(help=GPU_MEMORY)] = None,
    gpus: Annotated[float | None, option("gpus", "With --gpu: 1.")] = DEFAULT.gpus,
    engines: Annotated[int, option("max_concurrency", min=1)] = DEFAULT.max_concurrency,
    goal: Annotated[str | None, option("goal")] = DEFAULT.goal,
    engine_args: Annotated[str, option("engine_args", "JSON.")] = "{}",
    input: Annotated[str | None, typer.Option(help="The table. Its first rows are checked.")] = None,
    prompt: Annotated[str | None, typer.Option(help="The prompt, with columns in braces.")] = None,
    images: Annotated[str | None, typer.Option(help="A column of images that goes before the prompt.")] = None,
    schema: Annotated[Path | None, typer.Option(help="File with a JSON Schema that every answer satisfies.")] = None,
    choices: Annotated[str | None, typer.Option(help="The only answers allowed, separated by commas.")] = None,
    max_tokens: Annotated[int, option("max_tokens", min=1)] = option_default("max_tokens"),
    ray: Annotated[bool, typer.Option(help="Check the Ray cluster of RAY_ADDRESS too.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find out whether a job will run, and if not, what to change. Loads no model. Exit status 1: it won't run."""
    from daft_vllm.errors import DaftVLLMError, OptionError

    quiet()
    try:
        import daft

        from daft_vllm.job import read_table
        from daft_vllm.udf.check import check as check_job
        from daft_vllm.udf.columns.parts import image
        from daft_vllm.udf.columns.template import template

        if input is None and (prompt is not None or images is not None):
            raise OptionError("--prompt and --images need a table: pass --input.")
        if ray:
            daft.set_runner_ray()
        df = read_table(input) if input is not None else None
        messages: Any = [image(daft.col(images))] if images is not None else []
        if df is not None and prompt is not None:
            messages.append(template(prompt, df))
        report = check_job(
            messages or None,
            return_format(schema, choices),
            df=df,
            model=model,
            gpu=gpu,
            gpu_memory=gpu_memory,
            gpus=gpus,
            max_concurrency=engines,
            goal=goal,
            engine_args=engine_args_of(engine_args),
            max_tokens=max_tokens,
        )
    except DaftVLLMError as e:
        fail(str(e))
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
