"""Configs of models without a TOML file: reads their own ``config.json`` and counts their weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from daft_vllm.errors import ModelError
from daft_vllm.model_configs.architecture import media_of_config
from daft_vllm.model_configs.registry import ModelConfig


def derived_config(model: str) -> ModelConfig:
    """Return what can be known of a model without loading it. Imports transformers; asks the hub for one file.

    Args:
        model: folder of a model, or its name on the hub.

    Raises:
        ModelError: it has no readable ``config.json``, or one of a kind that transformers doesn't know.
    """
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(model)
    except Exception as e:
        why = " ".join(str(e).split())[:300]
        raise ModelError(f"the config.json of {model!r} can't be read: {type(e).__name__}: {why}") from e
    text = config.get_text_config()
    quantization = getattr(config, "quantization_config", None) or {}
    method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization.quant_method
    return ModelConfig(
        name=Path(model).name if Path(model).is_dir() else model,
        hub_name=model,
        licence="unknown",
        parameters=count_parameters(config),
        max_model_len=getattr(text, "max_position_embeddings", None) or 2048,
        modalities=("text", *media_of_config(config)),
        quantization=str(method) if method else None,
        config=config.to_dict(),
        sources={"config": "its own config.json", "parameters": "counted from it"},
    )


def count_parameters(config: Any) -> int:
    """Return how many weights a model with this Hugging Face config has. Tied ones count once; none is allocated.

    Raises:
        ModelError: transformers doesn't know the architecture, or needs a package for it.
    """
    import torch
    import transformers

    name = (getattr(config, "architectures", None) or [""])[0]
    try:
        model_class = getattr(transformers, name)
        with torch.device("meta"):
            model = model_class._from_config(config)
    except Exception as e:
        raise ModelError(f"the weights of {name or 'this model'} can't be counted: {type(e).__name__}: {e}") from e
    return sum({id(weight): weight.numel() for weight in model.parameters()}.values())
