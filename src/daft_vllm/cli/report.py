"""``daft-vllm report``: one page of HTML about a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from daft_vllm.cli.show import STORE
from daft_vllm.cli.terminal import console, fail


def report(
    store: Annotated[str, typer.Argument(help=STORE)],
    output: Annotated[Path, typer.Option(help="The page: a file whose name ends in .html.")],
    dollars_per_hour: Annotated[
        float, typer.Option(min=0, help="Price of all GPUs of the job together: shows what it cost.")
    ] = 0.0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a page that exists.")] = False,
) -> None:
    """Write a page about a store: rows and tokens, speed, lengths, errors with samples, slowest rows, cost.

    It has no scripts and loads nothing. It shows some prompts and answers.
    """
    from daft_vllm.engine.store.remote import local_copy
    from daft_vllm.errors import DaftVLLMError, OptionError
    from daft_vllm.stores.page import page_of
    from daft_vllm.stores.rows import figures_of

    try:
        if output.suffix.lower() not in (".html", ".htm"):
            raise OptionError(f"--output {output} is no name of a page: end it in .html.")
        if output.exists() and not overwrite:
            raise OptionError(f"{output} exists already: choose another name, or pass --overwrite.")
        with local_copy(store) as folder:
            text = page_of(Path(store).name, figures_of(folder), dollars_per_hour=dollars_per_hour)
        part = output.with_name(f".{output.name}.part")
        try:
            part.write_text(text, encoding="utf-8", errors="replace")
            part.replace(output)
        except OSError as e:
            raise OptionError(f"{output} can't be written: {e.strerror}. Choose another output.") from None
    except DaftVLLMError as e:
        fail(str(e))
    console.print(f"{output}: {output.stat().st_size / 1024:.0f} KiB", highlight=False, markup=False)
