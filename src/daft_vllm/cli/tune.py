"""``daft-vllm tune``: finds settings of vLLM that are faster for a job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from daft_vllm.cli.terminal import console, engine_args_of, fail, option, quiet


def tune(
    model: Annotated[str, typer.Argument(help="A short name, a name on the hub, or a folder.")],
    sample: Annotated[str, typer.Option(help="Rows of the job: Parquet, CSV or JSON lines.")],
    prompt: Annotated[str, typer.Option(help="The prompt, with columns in braces.")],
    output: Annotated[Path, typer.Option(help="Where to write the settings. The trials are kept beside it.")] = Path(
        "tuned.toml"
    ),
    rows: Annotated[int, typer.Option(min=1, help="Rows of the sample that each trial answers.")] = 64,
    max_tokens: Annotated[int, option("max_tokens", min=1)] = 128,
    minutes: Annotated[float, typer.Option(min=0, help="After how many minutes to stop trying.")] = 10.0,
    gpus: Annotated[float, typer.Option(help="GPUs of the engine.")] = 0,
    engine_args: Annotated[str, typer.Option(help="Settings to keep: JSON, or @file with an overlay.")] = "{}",
) -> None:
    """Try vLLM's settings on rows of a job, and write those that are faster. A stopped run continues where it was."""
    from daft_vllm.errors import DaftVLLMError

    quiet()
    try:
        from daft_vllm.engine.setup.config import check_engine_args
        from daft_vllm.model_configs import resolve_model
        from daft_vllm.tables.reading import read_table
        from daft_vllm.tuning.tune import SHARED_FIRST, Tuner, write_overlay
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
        typer.echo(f"the prompt with shared fields first, as 'daft-vllm run --shared-first' writes it: {ordered!r}")
    if found.engine_args:
        typer.echo(f"{output}: prompt(..., engine_args=daft_vllm.tuned_args({str(output)!r}))")
