"""Completion of names in a shell: models, goals and cards."""

from __future__ import annotations

from collections.abc import Iterable


def complete_model(incomplete: str) -> list[str]:
    """Return the short names and the hub's names of known models that begin as typed."""
    from daft_vllm.model_configs import known_models

    models = known_models().values()
    return _begin([*(one.name for one in models), *(one.hub_name for one in models)], incomplete)


def complete_goal(incomplete: str) -> list[str]:
    """Return the goals that begin as typed."""
    from daft_vllm.model_configs.resolution import goals

    return _begin(goals(), incomplete)


def complete_card(incomplete: str) -> list[str]:
    """Return the cards that begin as typed."""
    from daft_vllm.model_configs.cards import cards

    return _begin(cards(), incomplete)


def _begin(names: Iterable[str], incomplete: str) -> list[str]:
    return sorted({name for name in names if name.lower().startswith(incomplete.lower())})
