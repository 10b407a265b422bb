"""``daft-vllm models``: lists the models that daft-vllm describes."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table

from daft_vllm.cli.config import thinking_words
from daft_vllm.cli.terminal import GPU, GPU_MEMORY, fail, quiet
from daft_vllm.errors import DaftVLLMError, OptionError
from daft_vllm.model_configs import ModelConfig, known_models
from daft_vllm.model_configs.cards import Card, planned_card
from daft_vllm.model_configs.memory import plan_memory, weights_of
from daft_vllm.model_configs.resolution import resolve
from daft_vllm.model_configs.splitting import SIZES, possible_sizes

_WIDE = 160
"""Characters a line that a terminal needs to show all columns of the table."""


@dataclasses.dataclass(frozen=True)
class ModelEntry:
    """A model in the list.

    Args:
        model: its config.
        gpus: how many GPUs of the card it needs. None: no card was given, or it needs more than 8.
        max_model_len: the longest context on them, in tokens.
    """

    model: ModelConfig
    gpus: int | None = None
    max_model_len: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return it as a dictionary, for ``--json``."""
        model = self.model
        return {
            "name": model.name,
            "hub_name": model.hub_name,
            "parameters": model.parameters,
            "active_parameters": model.active_parameters,
            "max_model_len": model.max_model_len,
            "takes": list(model.modalities),
            "task": model.task,
            "thinking": model.prompting.thinking,
            "thinks_by_default": model.prompting.mode(None) == "thinking",
            "tools": model.prompting.tool_parser is not None,
            "licence": model.licence,
            "gated": model.gated,
            "fits": self.gpus and {"gpus": self.gpus, "max_model_len": self.max_model_len},
        }


def list_models(*, card: Card | None = None, takes: str | None = None) -> list[ModelEntry]:
    """Return the known models; with ``takes`` only those that take this kind of input.

    Raises:
        OptionError: no model takes this kind of input.
    """
    models = [model for model in known_models().values() if takes is None or takes in model.modalities]
    if not models:
        kinds = sorted({kind for model in known_models().values() for kind in model.modalities})
        raise OptionError(f"no model takes {takes!r}; models take {', '.join(kinds)}.")
    return [ModelEntry(model, *_fit(model, card)) if card is not None else ModelEntry(model) for model in models]


def _fit(model: ModelConfig, card: Card) -> tuple[int | None, int | None]:
    args = {name: setting.value for name, setting in resolve(model, card=card).items()}
    possible = possible_sizes(model, args)
    for number in (size for size in SIZES if size in possible):
        plan = plan_memory(model.architecture, weights_of(model, args), card, gpus=number, engine_args=args)
        if plan.fits:
            return number, plan.max_model_len
    return None, None


def print_models(lines: list[ModelEntry], card: Card | None, console: Console) -> None:
    """Print a table, with fewer columns in a narrow terminal."""
    wide = console.width >= _WIDE
    more = ("on the hub", "thinks", "tools", "licence") if wide else ()
    table = Table(Column("name", no_wrap=True), "parameters", "context", "takes", *more)
    if card is not None:
        table.add_column(f"fits {card.name}")
        table.caption = card.note
    for line in lines:
        model = line.model
        active = f", {model.active_parameters / 1e9:.1f}B active" if model.active_parameters else ""
        cells = [
            model.name,
            f"{model.parameters / 1e9:.2f}B{active}",
            f"{model.max_model_len}",
            ", ".join(model.modalities) if model.task == "generate" else "text, to embed",
        ]
        if wide:
            cells += [
                model.hub_name,
                "" if model.prompting.thinking == "never" else thinking_words(model),
                "yes" if model.prompting.tool_parser else "",
                f"{model.licence}{', gated' if model.gated else ''}",
            ]
        if card is not None:
            cells.append(f"{line.gpus} x, context {line.max_model_len}" if line.gpus else "no")
        table.add_row(*cells)
    console.print(table)


def models(
    gpu: Annotated[str | None, typer.Option(help=GPU)] = None,
    gpu_memory: Annotated[str | None, typer.Option(help=GPU_MEMORY)] = None,
    takes: Annotated[str | None, typer.Option(help="Only those that take text, image or audio.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the models that daft-vllm describes, by their short names; with a card, how many of it each one needs."""
    quiet()
    try:
        card = planned_card(gpu, gpu_memory)
        found = list_models(card=card, takes=takes)
    except DaftVLLMError as e:
        fail(str(e))
        return
    if json_output:
        typer.echo(json.dumps([line.as_dict() for line in found], indent=2))
    else:
        print_models(found, card, Console())
