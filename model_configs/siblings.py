"""The same models with quantized weights: what their makers, or Red Hat, publish beside the 16-bit weights."""

from __future__ import annotations

import functools
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from daft_vllm.model_configs.cards import Card
from daft_vllm.model_configs.quantization import multiplies
from daft_vllm.model_configs.registry import ModelConfig
from daft_vllm.model_configs.splitting import split_problem

_FILE = Path(__file__).with_name("overlays") / "quantized.toml"
Kind = Literal["fp8", "int8", "int4"]
_CONFIGS: dict[str, dict[str, Any]] = {
    "fp8": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "int8": {
        "quant_method": "compressed-tensors",
        "config_groups": {
            "group_0": {"weights": {"num_bits": 8, "type": "int"}, "input_activations": {"num_bits": 8, "type": "int"}}
        },
    },
    "int8-weights": {"quant_method": "gptq", "bits": 8, "group_size": 128},
    "int4": {"quant_method": "awq", "bits": 4, "group_size": 128},
}
"""What ``config.json`` says about quantization. ``"int8"`` multiplies in 8 bits, ``"int8-weights"`` in 16. Of models in
FP8 some have blocks and some have none; with blocks fewer numbers of GPUs can share them."""


@functools.cache
def _siblings() -> dict[str, dict[str, str]]:
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))


def quantized_siblings(config: ModelConfig) -> dict[str, str]:
    """Return the names on the hub of the same model with quantized weights, by kind: fp8, int8 or int4."""
    return {kind: name for kind, name in _siblings().get(config.name, {}).items() if kind != "source"}


def usable_siblings(config: ModelConfig, card: Card, gpus: int) -> dict[str, str]:
    """Return those of ``quantized_siblings`` that vLLM has kernels for on a card, and can split over ``gpus`` GPUs."""
    capability = card.capability or ()
    return {
        kind: name
        for kind, name in quantized_siblings(config).items()
        if (kind == "int4" or multiplies(kind, capability)) and split_problem(as_quantized(config, kind), gpus) is None
    }


def as_quantized(config: ModelConfig, kind: str) -> ModelConfig:
    """Return the config that the same model has with weights of a kind, for plans and estimates."""
    saved = _CONFIGS[kind]
    return replace(config, config={**config.config, "quantization_config": saved}, quantization=saved["quant_method"])
