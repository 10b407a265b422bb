"""Configs of models without a TOML file: reads their own ``config.json`` and counts their weights."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from daft_vllm.errors import ModelError
from daft_vllm.model_configs.architecture import media_of_config, quiet_transformers
from daft_vllm.model_configs.quantization import quantization_config, read_quantization
from daft_vllm.model_configs.registry import ModelConfig
from daft_vllm.wording import brief, shown

_ENCODES = ("modules.json", "config_sentence_transformers.json")
"""Files of models that make embeddings. vLLM 0.32 takes a model with the first for one that doesn't generate
(``vllm.transformers_utils.config.get_pooling_config``)."""

_OTHER_NAMES = {
    "DeepseekOCR2ForCausalLM": "DeepseekOcr2ForConditionalGeneration",
    "KimiK25ForConditionalGeneration": "Kimi_K25ForConditionalGeneration",
}
"""transformers' names of classes that ``config.json`` calls otherwise."""


def derived_config(model: str, *, trust_remote_code: bool = False) -> ModelConfig:
    """Return what can be known of a model without loading it. Imports transformers; asks the hub for one file.

    Args:
        model: folder of a model, or its name on the hub.
        trust_remote_code: whether Python code that comes with the model may be run.

    Returns:
        Its config. ``parameters`` is 0 if its weights can't be counted.

    Raises:
        ModelError: it has no readable ``config.json``, or one of a kind that transformers doesn't know.
    """
    from transformers import AutoConfig

    try:
        with quiet_transformers():
            config = AutoConfig.from_pretrained(model, trust_remote_code=trust_remote_code)
    except Exception as e:
        why = str(e)
        if "trust_remote_code" in why or "custom code" in why:
            raise ModelError(
                f"{shown(model)} comes with Python code of its own. If you trust it, pass "
                'engine_args={"trust_remote_code": True}.'
            ) from e
        raise ModelError(f"the config.json of {shown(model)} can't be read: {brief(e)}") from (
            None if "://" in model else e
        )
    text = config.get_text_config()
    found = _readable(config)
    folder = Path(model)
    saved = quantization_config(found) or _saved_beside(folder)
    if saved is not None:
        found["quantization_config"] = saved
    try:
        parameters = count_parameters(config)
    except ModelError:  # vLLM may serve it in spite of that
        parameters = 0
    return ModelConfig(
        name=folder.name if folder.is_dir() else model,
        hub_name=model,
        licence="unknown",
        parameters=parameters,
        max_model_len=getattr(text, "max_position_embeddings", None) or 2048,
        modalities=("text", *media_of_config(config)),
        quantization=read_quantization(saved).method if saved is not None else None,
        task="embed" if any((folder / name).is_file() for name in _ENCODES) else "generate",
        config=found,
        sources={"config": "its own config.json", "parameters": "counted from it"},
    )


def _readable(config: Any) -> dict[str, Any]:
    """Return a Hugging Face config as a dict. One with a quantization that transformers doesn't know can't be one."""
    saved = getattr(config, "quantization_config", None)
    plain = copy.copy(config)
    if saved is not None:
        plain.__dict__.pop("quantization_config", None)
    found: dict[str, Any] = plain.to_dict()
    if saved is not None:
        found["quantization_config"] = dict(saved) if isinstance(saved, dict) else saved.to_dict()
    return found


def _saved_beside(folder: Path) -> dict[str, Any] | None:
    """Return the quantization that NVIDIA ModelOpt writes into a file of its own. vLLM reads it, too."""
    try:
        found = json.loads((folder / "hf_quant_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return {"quant_method": "modelopt", **found} if isinstance(found, dict) else None


def count_parameters(config: Any) -> int:
    """Return how many weights a model with this Hugging Face config has. Tied ones count once; none is allocated.

    Raises:
        ModelError: transformers doesn't know the architecture, or needs a package for it.
    """
    model = empty_model(config)
    return sum({id(weight): weight.numel() for weight in model.parameters()}.values())


def empty_model(config: Any) -> Any:
    """Return transformers' model for a Hugging Face config, with weights that have a shape and no values.

    Raises:
        ModelError: transformers doesn't know the architecture, or needs a package for it.
    """
    import torch
    import transformers

    name = (getattr(config, "architectures", None) or [""])[0]
    plain = copy.deepcopy(config)
    plain.__dict__.pop("quantization_config", None)  # what the weights are in memory before they are quantized
    try:
        model_class = getattr(transformers, _OTHER_NAMES.get(name, name))
        with torch.device("meta"), quiet_transformers():
            return model_class._from_config(plain)
    except Exception as e:
        raise ModelError(f"the weights of {name or 'this model'} can't be counted: {type(e).__name__}: {e}") from e
