"""Advice where a model doesn't fit into the memory: which settings or which smaller model would."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from daft_vllm.model_configs.cards import GIB
from daft_vllm.model_configs.memory import MemoryPlan, plan_memory, weight_bytes
from daft_vllm.model_configs.registry import ModelConfig, known_models

_FP8 = (8, 9)
"""The lowest compute capability with which vLLM multiplies 8-bit matrices."""


def advice(config: ModelConfig, plan: MemoryPlan, weights: int, args: Mapping[str, Any]) -> list[str]:
    """Return why a plan doesn't fit, then the changes with which it would, one sentence each."""
    if plan.longest:
        return [f"a context of {plan.max_model_len} doesn't fit beside the weights; max_model_len={plan.longest} does."]
    needs = plan.weights + plan.activations + plan.graphs + plan.other
    sentences = [f"each GPU has {plan.available / GIB:.1f} GiB for vLLM, and {needs / GIB:.1f} GiB are needed."]
    for number in (2, 4, 8):
        more = {name: value for name, value in args.items() if name != "max_model_len"}
        if (
            number > plan.gpus
            and plan_memory(config.architecture, weights, plan.card, gpus=number, engine_args=more).longest
        ):
            sentences.append(f"gpus={number} fits.")
            break
    if config.quantization is None and _capability(plan) >= _FP8:
        smaller = weight_bytes(config.parameters, config.architecture, quantization="fp8")
        if plan_memory(config.architecture, smaller, plan.card, gpus=plan.gpus, engine_args=args).longest:
            sentences.append('engine_args={"quantization": "fp8"} fits.')
    family = [
        other
        for other in known_models().values()
        if other.parameters < config.parameters and other.name.split("-")[0] == config.name.split("-")[0]
    ]
    generation = config.name.rpartition("-")[0]
    for other in sorted(family, key=lambda one: (not one.name.startswith(f"{generation}-"), -one.parameters)):
        size = weight_bytes(other.parameters, other.architecture, quantization=other.quantization)
        if plan_memory(other.architecture, size, plan.card, gpus=plan.gpus).fits:
            sentences.append(f"{other.name} fits.")
            break
    return sentences


def _capability(plan: MemoryPlan) -> tuple[int, ...]:
    return tuple(int(part) for part in plan.card.compute_capability.split("."))
