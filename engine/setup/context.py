"""Whether a model takes a context as long as is asked for, by vLLM's rule."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from daft_vllm.errors import OptionError

_ALREADY_SCALED = ("default", "su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling")
"""Kinds of RoPE whose factor is part of ``max_position_embeddings`` (``_get_and_verify_max_len`` in vLLM 0.32)."""


def check_context(model_config: Mapping[str, Any] | None, engine_args: Mapping[str, Any]) -> None:
    """Raise ``OptionError`` if ``max_model_len`` is more than the model's context.

    Args:
        model_config: the content of the model's ``config.json``. None: it isn't known, and nothing is checked.
        engine_args: arguments of vLLM's engine by vLLM's names.
    """
    asked = engine_args.get("max_model_len")
    longest = longest_context(model_config) if model_config is not None else None
    if not isinstance(asked, int) or longest is None or asked <= longest or engine_args.get("hf_overrides"):
        return
    if os.environ.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "0").strip().lower() in ("1", "true"):
        return
    raise OptionError(
        f"engine_args: max_model_len={asked} is longer than the model's context of {longest}: write {longest} or less, "
        "or leave it out."
    )


def longest_context(model_config: Mapping[str, Any]) -> int | None:
    """Return the longest context that vLLM accepts for a model, in tokens; None if its config doesn't say."""
    text = model_config.get("text_config") or model_config
    trained = text.get("max_position_embeddings")
    if not isinstance(trained, int):
        return None
    factor = 1.0
    for rope in _ropes(text.get("rope_parameters") or text.get("rope_scaling")):
        if rope.get("rope_type", rope.get("type", "default")) not in _ALREADY_SCALED:
            factor = max(factor, float(rope.get("factor") or 1.0))
    own = model_config.get("model_max_length")
    return max(int(trained * factor), own if isinstance(own, int) else 0)


def _ropes(rope: Any) -> list[Mapping[str, Any]]:
    """Return the settings of RoPE: one, or one for each kind of layer."""
    if not isinstance(rope, Mapping):
        return []
    inner = [one for one in rope.values() if isinstance(one, Mapping)]
    return inner or [rope]


def config_in(folder: str | Path) -> Mapping[str, Any] | None:
    """Return the content of a folder's ``config.json``; None if there is none that can be read."""
    try:
        found = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, Mapping) else None
