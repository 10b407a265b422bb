"""Advice: which settings or which smaller model would fit into the memory, and what would be faster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from daft_vllm.model_configs.cards import GIB, Card
from daft_vllm.model_configs.memory import MemoryPlan, plan_memory, weight_bytes, weights_of
from daft_vllm.model_configs.quantization import multiplies
from daft_vllm.model_configs.registry import ModelConfig, known_models
from daft_vllm.model_configs.siblings import as_quantized, usable_siblings
from daft_vllm.model_configs.splitting import SIZES, possible_sizes, split_problem
from daft_vllm.model_configs.throughput import estimate_throughput

_FASTER = 1.15
"""A change is named if it gives this many times the rows by estimate: estimates of the same model on the same card."""
_MOST = 3
_ROOM = 8192
"""A model with quantized weights is named if there is room for this many tokens: with less, a few rows run at once."""
_CHANGES = ", which changes answers a little"


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


def _fitting_siblings(config: ModelConfig, plan: MemoryPlan, args: Mapping[str, Any]) -> list[str]:
    """Return the name of the same model with quantized weights: that with the most bits that fits, if any."""
    for kind, name in usable_siblings(config, plan.card, plan.gpus).items():
        other = as_quantized(config, kind)
        found = plan_memory(other.architecture, weights_of(other), plan.card, gpus=plan.gpus, engine_args=args)
        if found.longest >= min(_ROOM, int(args.get("max_model_len") or _ROOM), config.max_model_len):
            return [name]
    return []


def faster(config: ModelConfig, plan: MemoryPlan, args: Mapping[str, Any], *, shape: tuple[int, int, int]) -> list[str]:
    """Return what would give more rows per second by estimate, in sentences, the best first. It is for the user to try.

    Args:
        config: the model's config.
        plan: its plan.
        args: arguments of vLLM's engine.
        shape: prompt tokens of a row, how many of them the rows share, and output tokens.
    """

    def rows(other: ModelConfig, gpus: int, more: Mapping[str, Any]) -> float:
        changed = {**args, **more}
        planned = plan_memory(other.architecture, weights_of(other, changed), plan.card, gpus=gpus, engine_args=changed)
        prompt, cached, output = shape
        found = estimate_throughput(
            other, planned, changed, prompt_tokens=prompt, output_tokens=output, cached_tokens=cached
        )
        return found.rows if found is not None and planned.fits else 0.0

    before = rows(config, plan.gpus, {})
    if not before:
        return []
    tried: list[tuple[float, str]] = []
    fp8 = multiplies("fp8", plan.card.capability or ())
    if config.quantization is None and "quantization" not in args:
        siblings = usable_siblings(config, plan.card, plan.gpus)
        for kind, name in siblings.items():
            tried.append((rows(as_quantized(config, kind), plan.gpus, {}), f'model="{name}"{_CHANGES}'))
        if fp8 and "fp8" not in siblings:
            quantized = rows(config, plan.gpus, {"quantization": "fp8_per_tensor"})
            tried.append((quantized, f'engine_args={{"quantization": "fp8_per_tensor"}}{_CHANGES}'))
    if fp8 and "kv_cache_dtype" not in args:
        more = {"kv_cache_dtype": "fp8"}
        tried.append((rows(config, plan.gpus, more), f'engine_args={{"kv_cache_dtype": "fp8"}}{_CHANGES}'))
    for size in possible_sizes(config, args, most=plan.gpus - 1):
        if plan.gpus % size == 0:
            engines = plan.gpus // size
            tried.append((engines * rows(config, size, {}), f"gpus={size} and max_concurrency={engines}"))
    tried.sort(reverse=True)
    return [f"{rate / before:.1f} times the rows with {what}" for rate, what in tried if rate >= _FASTER * before][
        :_MOST
    ]


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
    if config.quantization is None and multiplies("fp8", plan.card.capability or ()):
        smaller = weight_bytes(config.parameters, config.architecture, quantization="fp8_per_tensor")
        if plan_memory(config.architecture, smaller, plan.card, gpus=plan.gpus, engine_args=args).longest:
            fitting.append('engine_args={"quantization": "fp8_per_tensor"}')
    for name in _fitting_siblings(config, plan, args):
        fitting.append(f'model="{name}"')
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
