"""Chooses the arguments of vLLM's engine for a model, a card and a goal, each with its origin and reason."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from daft_vllm.errors import OptionError, suggest
from daft_vllm.model_configs.batching import batching_settings
from daft_vllm.model_configs.cards import Card
from daft_vllm.model_configs.registry import ModelConfig

_FILE = Path(__file__).with_name("overlays") / "goals.toml"
_SAME = {"half": "float16", "float": "float32"}


@dataclass(frozen=True)
class Goal:
    """What a job wants most.

    Args:
        description: the goal in words.
        engine_args: arguments of vLLM's engine for it, by vLLM's names.
        why: the reason for each of them, by the argument's name.
    """

    description: str
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    why: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Setting:
    """One argument of vLLM's engine.

    Args:
        value: its value.
        origin: where it comes from.
        why: the reason. Empty where the origin says enough.
    """

    value: Any
    origin: str
    why: str = ""


@functools.cache
def goals() -> dict[str, Goal]:
    """Return the known goals by name."""
    data = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    return {name: Goal(**values) for name, values in data.items()}


def resolve(
    config: ModelConfig | None,
    *,
    card: Card | None = None,
    gpus: float = 1,
    goal: str | None = None,
    user: Mapping[str, Any] | None = None,
) -> dict[str, Setting]:
    """Return the settings by name. The card's override the model's, the goal's override both, the user's override all.

    Args:
        config: the model's config. None: nothing is known of it.
        card: the card that it runs on. None: unknown, or none.
        gpus: GPUs of an engine; a share of one, such as 0.5.
        goal: what the job wants most, a name in ``goals()``.
        user: the user's own.

    Raises:
        OptionError: there is no such goal, or the model gives wrong answers with the user's ``dtype``.
    """
    if goal is not None and goal not in goals():
        raise OptionError(f"there is no goal {goal!r}.{suggest(goal, goals())} There are {', '.join(goals())}.")
    found: dict[str, Setting] = {}
    if config is not None:
        found |= {n: Setting(v, f"model {config.name}", config.why.get(n, "")) for n, v in config.engine_args.items()}
        if config.prompting.reasoning_parser is not None:
            why = "separates the model's thinking from its answer"
            found["reasoning_parser"] = Setting(config.prompting.reasoning_parser, f"model {config.name}", why)
    if card is not None:
        found |= card_settings(config, card)
    if goal is not None:
        wanted = goals()[goal]
        found |= {n: Setting(v, f"goal {goal}", wanted.why.get(n, "")) for n, v in wanted.engine_args.items()}
    given = dict(user or {})
    if "structured_outputs_config" in given:  # it may contain a parser itself
        found.pop("reasoning_parser", None)
    found |= {name: Setting(value, "given") for name, value in given.items()}
    if config is not None and "dtype" in given:
        check_dtype(config, str(given["dtype"]))
    return found if card is None else with_batching(found, config, card, gpus)


def with_batching(
    settings: Mapping[str, Setting], config: ModelConfig | None, card: Card, gpus: float
) -> dict[str, Setting]:
    """Return the settings, and how many sequences and tokens a step has, where that is better than vLLM's defaults."""
    if config is None or not config.parameters or config.task != "generate":
        return dict(settings)
    args = {name: setting.value for name, setting in settings.items()}
    chosen, why = batching_settings(config, card, gpus, args)
    return {
        **settings,
        **{name: Setting(value, f"{config.name} on {card.name}", why) for name, value in chosen.items()},
    }


def check_remote_code(config: ModelConfig | None, args: Mapping[str, Any]) -> None:
    """Raise ``OptionError`` if the model needs code from its own repository, and the user doesn't say to trust it."""
    if config is not None and config.remote_code is not None and args.get("trust_remote_code") is not True:
        raise OptionError(
            f"{config.hub_name} needs Python code from its own repository: {config.remote_code}. If you trust that "
            'code, pass engine_args={"trust_remote_code": True}.'
        )


def card_settings(config: ModelConfig | None, card: Card) -> dict[str, Setting]:
    """Return a card's settings for every model and for this one; none of them is among the model's own settings.

    A variant of a card (``Card.like``) has the settings of that card, where a model has none for the variant itself.
    """
    found = {n: Setting(v, f"card {card.name}", card.why.get(n, "")) for n, v in card.engine_args.items()}
    alike = next((name for name in (card.name, card.like) if config is not None and name in config.cards), None)
    if config is not None and alike is not None:
        origin, overlay = f"model {config.name} on {alike}", config.cards[alike]
        found |= {n: Setting(v, origin, overlay.why.get(n, "")) for n, v in overlay.engine_args.items()}
    return found


def check_dtype(config: ModelConfig, dtype: str) -> None:
    """Raise ``OptionError`` for a type in which the model gives wrong answers."""
    name = _SAME.get(dtype, dtype)
    if name != "auto" and name not in config.dtypes:
        raise OptionError(
            f"{config.hub_name} gives empty or garbled answers in {name}: leave dtype out, or use "
            f"{' or '.join(config.dtypes)}."
        )
