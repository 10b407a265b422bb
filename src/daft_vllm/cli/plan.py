"""``daft-vllm plan``: plans how to cut a table for several engines."""

from __future__ import annotations

from typing import Annotated

import typer

from daft_vllm.cli.terminal import fail


def plan(
    rows: Annotated[int, typer.Option(min=1, help="Rows of the table.")],
    engines: Annotated[int, typer.Option(min=1, help="Engines on all workers together.")] = 1,
    workers: Annotated[int, typer.Option(min=1, help="Nodes of the cluster.")] = 1,
    batch_size: Annotated[int, typer.Option(min=1, help="The most rows of a batch.")] = 2048,
) -> None:
    """Print the calls of Daft that cut a table so that every engine is busy."""
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
        f"for each of a worker's {per_worker} engines. In a simulation they are busy {result.busy:.0%} of the time.\n"
    )
    typer.echo(found.calls)
