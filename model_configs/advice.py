"""Advice where a model doesn't fit into the memory: which settings or which smaller model would."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from daft_vllm.model_configs.cards import GIB, Card
from daft_vllm.model_configs.memory import MemoryPlan, plan_memory, weight_bytes, weights_of
from daft_vllm.model_configs.registry import ModelConfig, known_models
from daft_vllm.model_configs.splitting import SIZES, possible_sizes, split_problem

_FP8 = (8, 9)
"""The lowest compute capability with which vLLM multiplies 8-bit matrices."""


def engines_of(config: ModelConfig, card: Card, gpus: int, args: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the GPUs of each engine, and how many engines, that use a machine best. None: the model doesn't fit.

    That is the smallest number over which vLLM can split the model and with which it fits; if possible, one that leaves
    no GPU idle.
    """
    weights = weights_of(config, args)
    possible = possible_sizes(config, args, most=gpus)
    for size in sorted(possible, key=lambda one: (gpus % one != 0, one)):
        if plan_memory(config.architecture, weights, card, gpus=size, engine_args=args).fits:
            return size, gpus // size
    return None


def advice(config: ModelConfig, plan: MemoryPlan, weights: int, args: Mapping[str, Any]) -> list[str]:
    """Return why a plan doesn't fit, and the changes with which it would, in sentences."""
    if plan.longest:
        return [f"a context of {plan.max_model_len} doesn't fit beside the weights; max_model_len={plan.longest} does."]
    needs = plan.weights + plan.activations + plan.graphs + plan.other
    sentences = [f"each GPU has {plan.available / GIB:.1f} GiB for vLLM, and {needs / GIB:.1f} GiB are needed."]
    fitting = []
    more = {name: value for name, value in args.items() if name != "max_model_len"}
    larger = [number for number in possible_sizes(config, args) if number > plan.gpus]
    for number in sorted(larger, key=lambda one: (one not in SIZES, one)):
        if plan_memory(config.architecture, weights, plan.card, gpus=number, engine_args=more).longest:
            fitting.append(f"gpus={number}")
            break
    if config.quantization is None and (plan.card.capability or ()) >= _FP8:
        smaller = weight_bytes(config.parameters, config.architecture, quantization="fp8")
        if plan_memory(config.architecture, smaller, plan.card, gpus=plan.gpus, engine_args=args).longest:
            fitting.append('engine_args={"quantization": "fp8"}')
    family = [
        other
        for other in known_models().values()
        if other.parameters < config.parameters
        and other.name.split("-")[0] == config.name.split("-")[0]
        and other.task == config.task
        and split_problem(other, plan.gpus) is None
    ]
    generation = config.name.rpartition("-")[0]
    for other in sorted(family, key=lambda one: (not one.name.startswith(f"{generation}-"), -one.parameters)):
        size = weight_bytes(other.parameters, other.architecture, quantization=other.quantization)
        if plan_memory(other.architecture, size, plan.card, gpus=plan.gpus).fits:
            fitting.append(f"{other.name} on {plan.gpus} x {plan.card.name}")
            break
    return [*sentences, "; so does ".join([f"{fitting[0]} fits", *fitting[1:]]) + "."] if fitting else sentences
