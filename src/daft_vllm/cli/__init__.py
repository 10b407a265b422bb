"""The command ``daft-vllm``: one file for each of its commands."""

from __future__ import annotations

import typer

from daft_vllm.cli.check import check
from daft_vllm.cli.config import config
from daft_vllm.cli.demo import demo
from daft_vllm.cli.models import models
from daft_vllm.cli.plan import plan
from daft_vllm.cli.run import run
from daft_vllm.cli.tune import tune

app = typer.Typer(
    help="Answer every row of a table with a language model that runs here.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for _command in (run, demo, check, config, models, plan, tune):
    app.command()(_command)
