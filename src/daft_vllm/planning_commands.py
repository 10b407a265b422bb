"""``daft-vllm check``, ``config``, ``models``, ``plan`` and ``tune``: what is known of a job before it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from daft_vllm.terminal import console, engine_args_of, fail, quiet, return_format


def config(
    model: Annotated[str, typer.Argument(help="A short name, a name on the hub, or a folder.")],
    gpu: Annotated[str | None, typer.Option(help="Card to plan for: L4, A10G, A100-40, A100-80, H100, H200.")] = None,
    gpus: Annotated[float, typer.Option(help="GPUs of each engine, or a share of one.")] = 1,
    goal: Annotated[str | None, typer.Option(help="throughput, long-context, images, text or short-job.")] = None,
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

    quiet()
    try:
        from daft_vllm.config_command import print_shown, shown
        from daft_vllm.engine.setup.config import check_engine_args

        args = engine_args_of(engine_args)
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
        fail(str(e))
        return
    if json_output:
        typer.echo(json.dumps(what.as_dict(), indent=2, default=str))
    else:
        print_shown(what, Console())
    if what.plan is not None and not what.plan.fits:
        raise typer.Exit(1)


def check(
    model: Annotated[str, typer.Argument(help="A short name, a name on the hub, or a folder.")],
    gpu: Annotated[str | None, typer.Option(help="Card to plan for. Default: the one that is here.")] = None,
    gpus: Annotated[float | None, typer.Option(help="GPUs of each engine.")] = None,
    engines: Annotated[int, typer.Option(min=1, help="Engines in all.")] = 1,
    goal: Annotated[str | None, typer.Option(help="throughput, long-context, images, text or short-job.")] = None,
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

    quiet()
    try:
        import daft

        from daft_vllm.job import read_table
        from daft_vllm.udf.check import check as check_job
        from daft_vllm.udf.columns.parts import image
        from daft_vllm.udf.columns.template import template

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
            return_format(schema, choices),
            df=df,
            model=model,
            gpu=gpu,
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


def plan(
    rows: Annotated[int, typer.Option(min=1, help="Rows of the table.")],
    engines: Annotated[int, typer.Option(min=1, help="Engines on all workers.")] = 1,
    workers: Annotated[int, typer.Option(min=1, help="Nodes of the cluster.")] = 1,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows of a batch at most.")] = 2048,
) -> None:
    """Say how to cut a table so that every engine is busy, in Daft's calls."""
    from daft_vllm.errors import DaftVLLMError

    try:
        from daft_vllm.udf.partitions import plan_table, simulate

        found = plan_table(rows, engines=engines, workers=workers, batch_size=batch_size)
    except DaftVLLMError as e:
        fail(str(e))
        return
    result = simulate(found.partitions(), engines=engines, workers=workers, batch_size=found.batch_size)
    per_worker = engines // workers
    typer.echo(
        f"{found.tasks} partitions of {found.rows_per_task} rows, each {per_worker} batches of {found.batch_size}: one "
        f"for each of a worker's {per_worker} engines. Simulated, they are busy {result.busy:.0%} of the time.\n"
    )
    typer.echo(found.calls)


def models(
    gpu: Annotated[str | None, typer.Option(help="Card to plan for: L4, A10G, A100-40, A100-80, H100, H200.")] = None,
    takes: Annotated[str | None, typer.Option(help="Only those that take text, image or audio.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the models that daft-vllm describes, by their short names; with a card, how many of it each one needs."""
    from daft_vllm.errors import DaftVLLMError

    quiet()
    try:
        from daft_vllm.models_command import listed, print_listed

        found = listed(gpu=gpu, takes=takes)
    except DaftVLLMError as e:
        fail(str(e))
        return
    if json_output:
        typer.echo(json.dumps([line.as_dict() for line in found], indent=2))
    else:
        print_listed(found, gpu, Console())


def tune(
    model: Annotated[str, typer.Argument(help="A short name, a name on the hub, or a folder.")],
    sample: Annotated[str, typer.Option(help="Rows of the job: Parquet, CSV or JSON lines.")],
    prompt: Annotated[str, typer.Option(help="The prompt, with columns in braces.")],
    output: Annotated[Path, typer.Option(help="Where the settings go; what was tried is kept beside it.")] = Path(
        "tuned.toml"
    ),
    rows: Annotated[int, typer.Option(min=1, help="Rows of the sample that each trial answers.")] = 64,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 128,
    minutes: Annotated[float, typer.Option(min=0, help="When to stop trying.")] = 10.0,
    gpus: Annotated[float, typer.Option(help="GPUs of the engine.")] = 0,
    engine_args: Annotated[str, typer.Option(help="Settings that stay: JSON, or @file of an overlay.")] = "{}",
) -> None:
    """Try vLLM's settings on rows of a job, and write those that are faster. Goes on where it was stopped."""
    from daft_vllm.errors import DaftVLLMError

    quiet()
    try:
        from daft_vllm.engine.setup.config import check_engine_args
        from daft_vllm.job import read_table
        from daft_vllm.model_configs import resolve_model
        from daft_vllm.tune import SHARED_FIRST, Tuner, write_overlay
        from daft_vllm.udf.columns.shared_first import shared_first
        from daft_vllm.udf.columns.template import template

        args = engine_args_of(engine_args)
        check_engine_args(args)
        df = read_table(sample).limit(rows).collect()

        def texts(of: str) -> list[str]:
            asked = df.select(template(of, df).alias("prompt")).to_pydict()["prompt"]
            return [text for text in asked if text]

        ordered = shared_first(df, prompt).template
        tuner = Tuner(
            resolve_model(model),
            texts(prompt),
            shared_first=texts(ordered) if ordered != prompt else None,
            max_tokens=max_tokens,
            engine_args=args,
            gpus=gpus,
            log=output.with_suffix(".trials.jsonl"),
            say=lambda line: console.print(line, highlight=False),
        )
        found = tuner.run(minutes)
        write_overlay(found, output, model)
    except DaftVLLMError as e:
        fail(str(e))
        return
    typer.echo(str(found))
    if SHARED_FIRST in found.settings:
        typer.echo(f"the prompt with shared fields first, as 'daft-vllm run --shared-first' has it: {ordered!r}")
    if found.engine_args:
        typer.echo(f"{output}: prompt(..., engine_args=daft_vllm.tuned_args({str(output)!r}))")
