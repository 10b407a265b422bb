"""The command ``daft-vllm``: one file for each of its commands."""

from __future__ import annotations

import shutil
from typing import Annotated

import typer

import daft_vllm
from daft_vllm.cli.check import check
from daft_vllm.cli.config import config
from daft_vllm.cli.demo import demo
from daft_vllm.cli.models import models
from daft_vllm.cli.options import PromptCommand, with_prompt_options
from daft_vllm.cli.plan import plan
from daft_vllm.cli.report import report
from daft_vllm.cli.retry import retry
from daft_vllm.cli.run import run
from daft_vllm.cli.show import show
from daft_vllm.cli.top import top
from daft_vllm.cli.tune import tune

_WIDE = 125
"""Columns of a terminal in which tables of help have room for the names of options. In a narrower one help is plain."""


app = typer.Typer(
    help="Answer every row of a table with a language model that runs here.",
    no_args_is_help=True,
    rich_markup_mode="rich" if shutil.get_terminal_size().columns >= _WIDE else None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"daft-vllm {daft_vllm.__version__}")
        raise typer.Exit()


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and end.")
    ] = False,
) -> None:
    pass


for _command in (
    with_prompt_options(run),
    with_prompt_options(retry, only_sampling=True),
    show,
    report,
    top,
    demo,
    with_prompt_options(check, without=("model",)),
    config,
    models,
    plan,
    tune,
):
    app.command(cls=PromptCommand)(_command)
