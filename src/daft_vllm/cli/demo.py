"""``daft-vllm demo``: lets a model describe every installed Python package."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from daft_vllm.cli.terminal import fail, option, quiet
from daft_vllm.cli.watching import run_with_progress
from daft_vllm.errors import DaftVLLMError
from daft_vllm.udf.options import DEFAULT, PromptOptions


def demo(
    output: Annotated[str, typer.Option(help="Where to write the table.")] = "out/demo.parquet",
    model: Annotated[str, option("model")] = DEFAULT.model,
    limit: Annotated[int | None, typer.Option(min=1, help="Take only the first N packages.")] = None,
) -> None:
    """Describe and classify every installed Python package, in typed columns."""
    quiet()
    import pyarrow.parquet as pq
    from daft import col, lit

    from daft_vllm.demo import SYSTEM_MESSAGE, Label, package_table
    from daft_vllm.tables.writing import output_of

    df = package_table()
    if limit is not None:
        df = df.limit(limit)
    messages = lit("Package ") + col("name") + lit(": ") + col("summary")
    options = PromptOptions(
        return_format=Label,
        system_message=SYSTEM_MESSAGE,
        model=model,
        engine_args={"max_model_len": 2048},
        sampling={"max_tokens": 128},
    )
    try:
        failed = run_with_progress(df, messages, output_of(output, overwrite=True), options, column="label")
    except DaftVLLMError as e:
        fail(str(e))
    table = pq.read_table(output)
    shown = Table("name", "category", "audience", "description", title=f"{output}: {table.num_rows} rows")
    for row in table.slice(0, 20).to_pylist():
        label = row["label"] or {}
        shown.add_row(
            row["name"], label.get("category"), label.get("audience"), label.get("description") or row["error"]
        )
    Console().print(shown)
    if failed:
        fail(f"{failed} rows have no label; the column 'error' of {output} says why.")
