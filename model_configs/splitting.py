"""Over how many GPUs vLLM can split a model: vLLM's own rules, which vLLM applies only while it loads the model.

They can't be called without importing torch, so they are written again here, each beside the name of vLLM's function.
``tests/model_configs/test_splitting.py`` compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from daft_vllm.model_configs.quantization import Quantization, quantization_of
from daft_vllm.model_configs.registry import ModelConfig

SIZES = (1, 2, 4, 8)
"""Numbers of GPUs of one machine that plans try first."""
_LEAST_REFINED = 32
"""vLLM makes the blocks of experts in FP8 smaller where they don't fit, but no smaller than this
(``fused_moe.oracle.fp8.refine_fp8_moe_block_shape``)."""


def tensor_parallel_size(gpus: float, engine_args: Mapping[str, Any]) -> int:
    """Return over how many GPUs the layers are split: all of an engine's, divided by its pipeline's stages."""
    given = engine_args.get("tensor_parallel_size")
    return int(given) if given else max(1, int(gpus) // max(1, int(engine_args.get("pipeline_parallel_size") or 1)))


def heads_problem(config: ModelConfig, gpus: int) -> str | None:
    """Return why vLLM refuses this number of GPUs for every kind of model. None: it doesn't. Imports nothing.

    The rule is that of ``vllm.config.ModelConfig.verify_with_parallel_config``.
    """
    text = config.config.get("text_config") or config.config
    heads = text.get("num_attention_heads") if isinstance(text, Mapping) else None
    if isinstance(heads, int) and heads % gpus:
        return f"its {heads} attention heads can't be divided by {gpus}"
    return None


def split_problem(config: ModelConfig, gpus: int, engine_args: Mapping[str, Any] | None = None) -> str | None:
    """Return why vLLM can't split a model's layers over this number of GPUs. None: it can. Imports transformers.

    Args:
        config: the model's config.
        gpus: the tensor parallel size.
        engine_args: arguments of vLLM's engine.
    """
    if gpus == 1:
        return None
    args = engine_args or {}
    architecture = config.architecture
    apart = bool(args.get("enable_expert_parallel"))  # each GPU then has whole experts
    for name, number in architecture.divided.items():
        if number % gpus and not (apart and name == "columns of an expert"):
            return f"its {number:,} {name} can't be divided by {gpus}"
    for kind in architecture.cache:  # QKVParallelLinear, and the assertions of each model's attention
        if max(kind.heads, gpus) % min(kind.heads, gpus):
            return f"its {kind.heads} KV heads can't be divided among {gpus} GPUs, nor {gpus} GPUs among them"
    if architecture.experts and gpus > architecture.experts and not apart:
        return f"it has {architecture.experts} experts, fewer than {gpus}"
    quantization = quantization_of(config, args)
    if quantization is None or not quantization.from_files:
        return None
    return _block_problem(config, gpus, quantization, apart=apart)


def _block_problem(config: ModelConfig, gpus: int, quantization: Quantization, *, apart: bool) -> str | None:
    """Return the first layer of which a GPU's part isn't a whole number of blocks.

    The rules are those of ``fp8_utils.validate_fp8_block_shape`` and ``validate_fp8_block_shape_moe``, and of
    ``vllm.distributed.utils.verify_group_size_divides_partition``.
    """
    architecture = config.architecture
    width = architecture.divided.get("columns of its MLP", 0) // gpus
    head = min((kind.width // 2 for kind in architecture.cache), default=0)
    attention = architecture.heads * head // gpus
    text = config.config.get("text_config") or config.config
    compressed = bool(text.get("kv_lora_rank"))  # MLA has other matrices, whose sizes are multiples of the usual blocks
    if quantization.block is not None:
        rows, columns = quantization.block
        parts = {f"{width:,} columns of its MLP": (width, math.lcm(rows, columns))}
        if not compressed:
            parts[f"{attention:,} columns of its attention"] = attention, math.lcm(rows, columns)
            for kind in architecture.cache:
                keys = max(1, kind.heads // gpus) * kind.width // 2
                parts[f"{keys:,} columns of its keys"] = keys, rows
        expert = architecture.expert_size // gpus
        refined = math.gcd(rows, columns, expert, architecture.hidden_size)
        if expert and not apart and (expert % rows or expert % columns) and refined < _LEAST_REFINED:
            return f"a GPU's {expert:,} columns of an expert can't be divided into blocks of {rows} x {columns}"
        for name, (size, block) in parts.items():
            if size % block:
                return f"a GPU's {name} can't be divided into blocks of {rows} x {columns}"
    elif quantization.group is not None and not architecture.experts:
        group = quantization.group
        for name, size in (("columns of its MLP", width), ("columns of its attention", attention)):
            if size % group:
                return f"a GPU's {size:,} {name} can't be divided into groups of {group}"
    return None


def possible_sizes(config: ModelConfig, engine_args: Mapping[str, Any] | None = None, *, most: int = 8) -> list[int]:
    """Return the numbers of GPUs, up to ``most``, that vLLM can split the model over."""
    return [number for number in range(1, most + 1) if split_problem(config, number, engine_args) is None]


def split_advice(config: ModelConfig, gpus: int, engine_args: Mapping[str, Any] | None = None) -> str:
    """Return what to write where a model can't be split over ``gpus`` GPUs. Imports transformers."""
    possible = possible_sizes(config, engine_args, most=max(gpus, 2))
    listed = ", ".join(map(str, possible[:-1])) + f" or {possible[-1]}" if len(possible) > 1 else "1"
    whole = max((number for number in possible if gpus % number == 0), default=1)
    return f"Use gpus={listed}. With gpus={whole} and max_concurrency={gpus // whole}, {gpus} GPUs are in use."
