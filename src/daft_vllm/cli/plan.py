"""``daft-vllm plan``: plans how to cut a table for several engines."""

from __future__ import annotations

from typing import Annotated

import typer

from daft_vllm.cli.terminal import GPU, GPU_MEMORY, fail
from daft_vllm.wording import counted


def plan(
    rows: Annotated[int, typer.Option(min=1, help="Rows of the table.")],
    engines: Annotated[
        int, typer.Option("--engines", "--max-concurrency", min=1, help="Engines on all workers together.")
    ] = 1,
    workers: Annotated[int, typer.Option(min=1, help="Nodes of the cluster.")] = 1,
    model: Annotated[str | None, typer.Option(help="Work out --engines for this model and --gpu.")] = None,
    gpu: Annotated[str | None, typer.Option(help=GPU)] = None,
    gpu_memory: Annotated[str | None, typer.Option(help=GPU_MEMORY)] = None,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs of each worker, with --model.")] = 8,
    batch_size: Annotated[int, typer.Option(min=1, help="The most rows of a batch.")] = 2048,
) -> None:
    """Print the calls of Daft that cut a table so that every engine is busy."""
    from daft_vllm.errors import DaftVLLMError

    try:
        from daft_vllm.udf.partitions import plan_table, simulate

        if model is not None:
            size, here = _layout(model, gpu, gpu_memory, gpus)
            engines = here * workers
            typer.echo(f"gpus={size}, max_concurrency={engines}: {here} engines on the {gpus} GPUs of a worker.")
        found = plan_table(rows, engines=engines, workers=workers, batch_size=batch_size)
    except DaftVLLMError as e:
        fail(str(e))
        return
    result = simulate(found.partitions(), engines=engines, workers=workers, batch_size=found.batch_size)
    per_worker = engines // workers
    typer.echo(
        f"{counted(found.tasks, 'partition')} of {counted(found.rows_per_task, 'row')}, each "
        f"{counted(per_worker, 'batch', 'batches')} of {found.batch_size}: one for each engine of a worker. In a "
        f"simulation the engines are busy {result.busy:.0%} of the time.\n"
    )
    typer.echo(found.calls)


def _layout(model: str, gpu: str | None, gpu_memory: str | None, gpus: int) -> tuple[int, int]:
    """Return the GPUs of each engine, and the engines of a worker.

    Raises:
        OptionError: no card is given, or it isn't known.
        ModelError: the model doesn't fit, or its ``config.json`` can't be read.
    """
    from daft_vllm.errors import ModelError, OptionError
    from daft_vllm.model_configs import config_of, derived_config
    from daft_vllm.model_configs.advice import engines_of
    from daft_vllm.model_configs.cards import planned_card
    from daft_vllm.model_configs.resolution import resolve

    card = planned_card(gpu, gpu_memory)
    if card is None:
        raise OptionError("--model needs a card: pass --gpu, or --gpu-memory.")
    config = config_of(model) or derived_config(model)
    args = {name: setting.value for name, setting in resolve(config, card=card).items()}
    found = engines_of(config, card, gpus, args)
    if found is None:
        raise ModelError(f"{model} doesn't fit {gpus} x {card.name}: 'daft-vllm config {model}' shows what would.")
    return found
