"""A model's ``config.json``: whether its values can be, and how long a context it takes, by vLLM's rule."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from daft_vllm.errors import OptionError

_ALREADY_SCALED = ("default", "su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling")
"""Kinds of RoPE whose factor is part of ``max_position_embeddings`` (``_get_and_verify_max_len`` in vLLM 0.32)."""


_POSITIVE = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
)
_DTYPE = re.compile(r"(torch\.)?(b?float16|float(32|64)?|half|double|auto|u?int8|float8_\w+)")


def config_problem(config: Any) -> str | None:
    """Return which value in the content of a ``config.json`` no model can have. None: none is seen."""
    if not isinstance(config, Mapping):
        return "it is not an object"
    text = config.get("text_config")
    if text is not None and not isinstance(text, Mapping):
        return f"text_config is {text!r:.40}, not an object"
    saved = config.get("quantization_config")
    if saved is not None and not isinstance(saved, Mapping):
        return f"quantization_config is {saved!r:.40}, not an object"
    if saved and "bits" in saved and "group_size" in saved and not saved.get("quant_method"):
        return (
            "quantization_config has no quant_method, so its weights are for Apple's MLX. Pass the name of the model "
            "that they were made from"
        )
    for part in (config, text or {}):
        for name in _POSITIVE:
            value = part.get(name)
            if isinstance(value, int) and value <= 0:
                return f"{name} is {value}"
        for name in ("torch_dtype", "dtype"):
            value = part.get(name)
            known = isinstance(value, str | Mapping | None) and (
                not isinstance(value, str) or _DTYPE.fullmatch(value) is not None
            )
            if not known:
                return f"{name} is {value!r:.40}, which is no type of numbers"
    return None


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
    for rope in ropes(text.get("rope_parameters") or text.get("rope_scaling")):
        if rope.get("rope_type", rope.get("type", "default")) not in _ALREADY_SCALED:
            factor = max(factor, float(rope.get("factor") or 1.0))
    own = model_config.get("model_max_length")
    return max(int(trained * factor), own if isinstance(own, int) else 0)


def ropes(rope: Any) -> list[Mapping[str, Any]]:
    """Return the settings of RoPE: one, or one for each kind of layer."""
    if not isinstance(rope, Mapping):
        return []
    inner = [one for one in rope.values() if isinstance(one, Mapping)]
    return inner or [rope]


def config_in(folder: str | Path, name: str = "config.json") -> Mapping[str, Any] | None:
    """Return the content of a folder's ``config.json``, or of another file; None if there is none that can be read."""
    try:
        found = json.loads((Path(folder) / name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, Mapping) else None
