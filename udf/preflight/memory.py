"""Checks whether a model, and the KV cache that was asked for, fit into the memory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import psutil

from daft_vllm.engine.setup.environment import default_engine_args
from daft_vllm.errors import ModelError
from daft_vllm.model_configs import ModelConfig
from daft_vllm.model_configs.advice import advice
from daft_vllm.model_configs.architecture import Architecture
from daft_vllm.model_configs.cards import GIB, Card
from daft_vllm.model_configs.memory import BYTES, MemoryPlan, block_note, plan_memory, sequence_bytes, weights_of
from daft_vllm.model_configs.quantization import quantization_of
from daft_vllm.udf.preflight.model import Model
from daft_vllm.udf.preflight.report import Check


def check_memory(model: Model, card: Card | None, gpus: float) -> str | Check:
    """Return how the model fits into a card's memory or, on a CPU, into this machine's.

    Raises:
        ModelError: it doesn't fit. The message says what would.
    """
    config, args = model.config, model.args
    if not config.parameters and model.file_bytes is None:
        return Check("memory", "warning", f"not estimated: transformers can't count the weights of {config.hub_name}")
    weights = weights_of(config, args, file_bytes=model.file_bytes)
    quantization = quantization_of(config, args)
    unsure = quantization is not None and quantization.weight_bytes is None and model.file_bytes is None
    at_most = f", if each weight has 16 bits: {config.quantization} says nothing about them" if unsure else ""
    if card is None:
        if gpus:
            return f"{weights / GIB:.1f} GiB of weights{at_most}; no card is known: name one with gpu="
        return _on_cpu(config.architecture, weights, args)
    plan = plan_memory(config.architecture, weights, card, gpus=gpus, engine_args=args)
    note = f". {card.note[0].upper()}{card.note[1:]}" if card.note else ""
    asked = _asked_cache(args)
    if asked is not None:
        _check_asked_cache(plan, asked)
    if plan.fits or asked is not None:
        each = "on each GPU " if plan.gpus > 1 else ""
        shorter = plan.max_model_len < config.max_model_len and int(args.get("max_model_len") or 0) <= 0
        less = f" (the model's is {config.max_model_len})" if shorter else ""
        fitting = (
            f"{plan.gpus} x {card.name}: {each}{plan.weights / GIB:.1f} GiB of weights, {plan.cache / GIB:.1f} GiB for "
            f"the KV cache: a context of {plan.max_model_len}{less}, {plan.concurrency:.1f} of that length at once"
            f"{at_most}{note}"
        )
        if blocks := block_note(config.architecture, plan.gpus, args):
            fitting = f"{fitting}. {blocks}"
        return Check("memory", "warning", fitting) if card.note or shorter else fitting
    refused = f"it doesn't fit {plan.gpus} x {card.name}: {' '.join(advice(config, plan, weights, args))}{note}"
    if unsure:
        return Check("memory", "warning", f"{refused}{at_most}")
    raise ModelError(refused)


def _asked_cache(args: Mapping[str, Any]) -> int | None:
    given = args.get("kv_cache_memory_bytes")
    return int(given) if given else None


def _check_asked_cache(plan: MemoryPlan, asked: int) -> None:
    """Raise ``ModelError`` if a GPU has no room for a KV cache of ``asked`` bytes, or no sequence fits into it."""
    room = plan.card.memory_bytes - plan.weights - plan.activations - plan.graphs - plan.other
    if asked > room:
        raise ModelError(
            f"kv_cache_memory_bytes={asked} is {asked / GIB:.1f} GiB, and a {plan.card.name} has "
            f"{max(0, room) / GIB:.1f} left beside the weights: leave it out, or lower it."
        )
    if asked < plan.sequence:
        raise ModelError(
            f"kv_cache_memory_bytes={asked} holds no sequence of {plan.max_model_len} tokens, which takes "
            f"{plan.sequence}: raise it, or lower max_model_len."
        )


def _on_cpu(architecture: Architecture, weights: int, args: Mapping[str, Any]) -> str:
    """Return what the machine's memory holds. Raise ``ModelError`` if the weights and the KV cache are more."""
    free = check_machine_memory(weights, args)
    cache = cpu_cache_bytes(args) or int(str(default_engine_args(cpu=True).get("kv_cache_memory_bytes", 0)))
    context = int(args.get("max_model_len") or 0)
    element = BYTES.get(str(args.get("dtype", "auto")), 2.0)
    block = int(args.get("block_size") or 32)
    needed = sequence_bytes(architecture, context, element_bytes=element, block_size=block) if context > 0 else 0
    if needed > cache:
        raise ModelError(
            f"a context of {context} takes {needed / GIB:.1f} GiB, and the KV cache has {cache / GIB:.1f}: lower "
            f"max_model_len, or pass kv_cache_memory_bytes={needed}."
        )
    parts = f"{weights / GIB:.1f} GiB of weights, {cache / GIB:.1f} GiB for the KV cache"
    return f"{parts}, {free / GIB:.1f} GiB of memory free"


def cpu_cache_bytes(args: Mapping[str, Any]) -> int | None:
    """Return the bytes of the KV cache on a CPU that the user asked for. None: none."""
    asked = _asked_cache(args)
    if asked is not None:
        return asked
    try:
        return int(float(os.environ.get("VLLM_CPU_KVCACHE_SPACE") or 0) * GIB) or None
    except ValueError:
        return None


def check_machine_memory(weights: int, args: Mapping[str, Any], engines: int = 1) -> int:
    """Return the free bytes of this machine's memory.

    Args:
        weights: bytes of the weights.
        args: arguments of vLLM's engine. A KV cache that they ask for counts, too.
        engines: how many engines take as much each.

    Raises:
        ModelError: the weights and the KV cache take more.
    """
    free = psutil.virtual_memory().available
    weights, cache = weights * engines, (cpu_cache_bytes(args) or 0) * engines
    of = f" of {engines} engines" if engines > 1 else ""
    if weights > free:
        raise ModelError(f"the weights{of} take {weights / GIB:.1f} GiB, and {free / GIB:.1f} GiB of memory are free.")
    if weights + cache > free:
        name = "kv_cache_memory_bytes" if _asked_cache(args) else "VLLM_CPU_KVCACHE_SPACE"
        raise ModelError(
            f"the KV cache{of} takes {cache / GIB:.1f} GiB ({name}) beside {weights / GIB:.1f} GiB of weights, and "
            f"{free / GIB:.1f} GiB of memory are free: lower {name}."
        )
    return free


def check_length(config: ModelConfig, args: Mapping[str, Any]) -> None:
    """Raise ``ModelError`` if ``max_model_len`` is more than the model can take, which vLLM refuses.

    The rule is that of ``vllm.config.model._get_and_verify_max_len``. With other positions (``hf_overrides``) it is
    left to vLLM.
    """
    given = args.get("max_model_len")
    if not isinstance(given, int) or args.get("hf_overrides") or os.environ.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") == "1":
        return
    text = config.config.get("text_config") or config.config
    scaling = text.get("rope_parameters") or text.get("rope_scaling") or {}
    factor = float(scaling.get("factor") or 1) if isinstance(scaling, Mapping) else 1.0
    most = int(config.max_model_len * max(1.0, factor))
    if given > most:
        raise ModelError(f"max_model_len={given} is more than the model's context, {most}: lower it, or leave it out.")
