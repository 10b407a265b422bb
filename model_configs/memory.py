"""Plans a card's memory before anything is loaded: weights, activations, and the rest for the KV cache."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from daft_vllm.model_configs.activations import CONTEXT_BYTES, NCCL_BYTES, activation_bytes, graph_bytes
from daft_vllm.model_configs.architecture import Architecture, CacheLayers
from daft_vllm.model_configs.cards import GIB, Card
from daft_vllm.model_configs.quantization import Quantization, quantization_of, read_quantization

if TYPE_CHECKING:
    from daft_vllm.model_configs.registry import ModelConfig

BYTES = {"bfloat16": 2.0, "float16": 2.0, "half": 2.0, "float32": 4.0, "float": 4.0}
UTILIZATION = 0.92
"""vLLM 0.32's default of ``gpu_memory_utilization``."""
BLOCK_SIZE = 16
"""Tokens of a KV block, vLLM's default on GPUs."""


def vllm_defaults(card: Card) -> dict[str, int]:
    """Return vLLM 0.32's defaults for offline use on a card."""
    if card.memory_bytes >= 70 * GIB and "A100" not in card.full_name:
        return {"max_num_seqs": 1024, "max_num_batched_tokens": 16384}
    return {"max_num_seqs": 256, "max_num_batched_tokens": 8192}


def utilization_of(engine_args: Mapping[str, Any], gpus: float) -> float:
    """Return the share of a GPU's memory that an engine takes; several engines share a GPU if ``gpus`` is below 1."""
    return float(engine_args.get("gpu_memory_utilization") or UTILIZATION * (min(1.0, gpus) or 1.0))


@dataclass(frozen=True)
class MemoryPlan:
    """How the memory of each GPU of an engine is divided. Sizes are in bytes, for one GPU.

    Args:
        card: the card.
        gpus: GPUs of the engine, over which the model is split.
        share: the engine's share of each of them: below 1, several engines share one.
        available: memory that vLLM may use.
        weights: the model's weights.
        activations: intermediate results of the largest step, including an image encoder's.
        graphs: CUDA graphs.
        other: CUDA's context, kernels, and buffers to talk to other GPUs.
        max_model_len: context that the engine is started with, in tokens.
        longest: tokens of the longest sequence that fits into the cache. 0: none fits.
        sequence: cache of one sequence of ``max_model_len`` tokens.
        token: cache of one more token in a long sequence.
    """

    card: Card
    gpus: int
    share: float
    available: int
    weights: int
    activations: int
    graphs: int
    other: int
    max_model_len: int
    longest: int
    sequence: int
    token: int

    @property
    def cache(self) -> int:
        """What is left for the KV cache; negative if the rest doesn't fit."""
        return self.available - self.weights - self.activations - self.graphs - self.other

    @property
    def fits(self) -> bool:
        """Whether the engine starts: the cache holds one sequence of ``max_model_len``."""
        return self.cache >= self.sequence

    @property
    def concurrency(self) -> float:
        """How many sequences of ``max_model_len`` the cache holds at once."""
        return max(0.0, self.cache / self.sequence)


def weight_bytes(
    parameters: int,
    architecture: Architecture,
    *,
    dtype: str = "bfloat16",
    quantization: Quantization | str | None = None,
) -> int:
    """Return the bytes of a model's weights. Embeddings, and what a quantization leaves as it is, have 16 bits.

    Args:
        parameters: number of weights.
        architecture: the model's architecture.
        dtype: type of weights that are not quantized.
        quantization: how they are quantized, or the name of a kind. If it doesn't say how many bits a weight takes,
            16 are counted.
    """
    if quantization is None:
        return int(parameters * BYTES.get(dtype, 2.0))
    kind = read_quantization({}, quantization) if isinstance(quantization, str) else quantization
    whole = architecture.embeddings * architecture.vocabulary * architecture.hidden_size
    experts = architecture.layers * architecture.experts * 3 * architecture.hidden_size * architecture.expert_size
    if kind.only_experts:
        whole = max(whole, parameters - experts)
    whole = min(whole, parameters)
    size = kind.weight_bytes or 2.0
    apart = experts * (kind.expert_bytes - size) if kind.expert_bytes is not None else 0
    return int((parameters - whole) * size + apart + whole * 2)


def weights_of(
    config: ModelConfig, engine_args: Mapping[str, Any] | None = None, *, file_bytes: int | None = None
) -> int:
    """Return the bytes of a model's weights: as published, or in the type that vLLM's arguments ask for.

    Args:
        config: the model's config.
        engine_args: arguments of vLLM's engine.
        file_bytes: bytes of its files of weights. If these are quantized, or its weights can't be counted, that is the
            answer. None: unknown.
    """
    args = engine_args or {}
    quantization = quantization_of(config, args)
    if file_bytes is not None and (not config.parameters or (quantization is not None and quantization.from_files)):
        return file_bytes
    dtype = str(args.get("dtype", "auto"))
    return weight_bytes(
        config.parameters,
        config.architecture,
        dtype="bfloat16" if dtype == "auto" else dtype,
        quantization=quantization,
    )


def sequence_bytes(
    architecture: Architecture,
    tokens: int,
    *,
    tensor_parallel: int = 1,
    element_bytes: float = 2.0,
    block_size: int = BLOCK_SIZE,
    batched_tokens: int = 8192,
) -> int:
    """Return the bytes of cache that a sequence takes on each GPU, as vLLM allocates it.

    Layers with a sliding window keep the window and the tokens that one step adds. If there are several kinds of
    layers, vLLM divides each into groups of the same size and pads the last one, so that all share one pool of blocks.

    Args:
        architecture: the model's architecture.
        tokens: prompt and answer together.
        tensor_parallel: GPUs that the heads are split over.
        element_bytes: bytes of an element of the cache: 2, or 1 with ``kv_cache_dtype="fp8"``.
        block_size: tokens of a block.
        batched_tokens: vLLM's ``max_num_batched_tokens``.
    """
    if architecture.packed is not None:
        return architecture.packed.sequence_bytes(tokens, batched_tokens)
    total = 0
    for layers, kind in _groups(architecture.cache):
        kept = tokens if kind.window is None else min(tokens, kind.window - 1 + batched_tokens)
        blocks = math.ceil(kept / block_size) + (kind.window is not None and kept < tokens)
        heads = max(1, math.ceil(kind.heads / tensor_parallel))
        total += int(layers * blocks * block_size * (heads * kind.width * element_bytes + kind.fixed))
    return total + math.ceil(architecture.state_bytes / tensor_parallel)


def _groups(cache: tuple[CacheLayers, ...]) -> list[tuple[int, CacheLayers]]:
    """Return each kind of layers, with how many are allocated after padding."""
    if len(cache) < 2:
        return [(kind.layers, kind) for kind in cache]
    fewest, most = min(kind.layers for kind in cache), max(kind.layers for kind in cache)
    size = most if most < 1.5 * fewest else fewest
    return [(math.ceil(kind.layers / size) * size, kind) for kind in cache]


def cache_element_bytes(args: Mapping[str, Any]) -> float:
    """Return the bytes of an element of the KV cache."""
    if str(args.get("kv_cache_dtype", "auto")).startswith("fp8"):
        return 1.0
    return BYTES.get(str(args.get("dtype", "auto")), 2.0)


def block_tokens(architecture: Architecture, *, tensor_parallel: int = 1, element_bytes: float = 2.0) -> int:
    """Return the tokens of a KV block on GPUs. A prefix that is shorter than a block is not cached.

    Where some layers keep a state instead, vLLM makes the blocks of attention as large as a state
    (``vllm.platforms.interface.Platform``, ``attn_block_size``). On Blackwell they may be up to 128 tokens larger.

    Args:
        architecture: the model's architecture.
        tensor_parallel: GPUs that the heads are split over.
        element_bytes: bytes of an element of the cache: 2, or 1 with ``kv_cache_dtype="fp8"``.
    """
    if not architecture.state_page or not architecture.cache:
        return BLOCK_SIZE
    kind = architecture.cache[0]
    token = max(1, math.ceil(kind.heads / tensor_parallel)) * kind.width * element_bytes
    page = architecture.state_page / tensor_parallel
    return max(BLOCK_SIZE, BLOCK_SIZE * math.ceil(page / (BLOCK_SIZE * token)))


def block_note(architecture: Architecture, gpus: int, engine_args: Mapping[str, Any]) -> str:
    """Return what large KV blocks mean for rows that share a prefix, in a sentence. Empty: they are not large."""
    element = cache_element_bytes(engine_args)
    tokens = block_tokens(architecture, tensor_parallel=gpus, element_bytes=element)
    if tokens <= BLOCK_SIZE or engine_args.get("enable_prefix_caching") is False:
        return ""
    return f"KV blocks of {tokens} tokens: rows that share fewer than that compute them again"


def longest_context(cache: int, architecture: Architecture, **options: Any) -> int:
    """Return the tokens of the longest sequence in ``cache`` bytes; ``options`` are those of ``sequence_bytes``."""
    low, high = 0, architecture.max_model_len
    while low < high:
        middle = (low + high + 1) // 2
        if sequence_bytes(architecture, middle, **options) <= cache:
            low = middle
        else:
            high = middle - 1
    return low


def plan_memory(
    architecture: Architecture,
    weights: int,
    card: Card,
    *,
    gpus: float = 1,
    engine_args: Mapping[str, Any] | None = None,
) -> MemoryPlan:
    """Return how the memory is divided.

    The weights are divided by the number of GPUs. The cache is counted as vLLM allocates it. The rest is estimated in
    ``daft_vllm.model_configs.activations``.

    Args:
        architecture: the model's architecture.
        weights: bytes of its weights, from ``weight_bytes``.
        card: the card.
        gpus: GPUs of the engine; a share of one, such as 0.5, for several engines on one card.
        engine_args: arguments of vLLM's engine. Those with an effect here: ``max_model_len``, ``max_num_seqs``,
            ``max_num_batched_tokens``, ``gpu_memory_utilization``, ``kv_cache_dtype``, ``dtype``, ``block_size``,
            ``enforce_eager``, ``language_model_only``.
    """
    args = {**vllm_defaults(card), **{name: value for name, value in (engine_args or {}).items() if value is not None}}
    number = max(1, int(gpus))
    utilization = utilization_of(args, gpus)
    split = weights // number
    tokens, sequences = int(args["max_num_batched_tokens"]), int(args["max_num_seqs"])
    text_only = bool(args.get("language_model_only"))
    activations = activation_bytes(
        replace(architecture, encoder=None) if text_only else architecture,
        batched_tokens=tokens,
        sequences=sequences,
        tensor_parallel=number,
    )
    graphs = 0 if args.get("enforce_eager") else graph_bytes(architecture)
    other = CONTEXT_BYTES + (NCCL_BYTES if number > 1 else 0)
    options: dict[str, Any] = {
        "tensor_parallel": number,
        "element_bytes": cache_element_bytes(args),
        "block_size": int(args.get("block_size") or BLOCK_SIZE),
        "batched_tokens": tokens,
    }
    available = int(card.memory_bytes * utilization)
    cache = available - split - activations - graphs - other
    longest = longest_context(cache, architecture, **options) if cache > 0 else 0
    context = args.get("max_model_len")
    context = longest if context in (None, -1) else int(context or 0)
    far = max(context, architecture.max_model_len, 2 * tokens)
    return MemoryPlan(
        card=card,
        gpus=number,
        share=min(1.0, gpus) or 1.0,
        available=available,
        weights=split,
        activations=activations,
        graphs=graphs,
        other=other,
        max_model_len=context,
        longest=longest,
        sequence=max(1, sequence_bytes(architecture, max(1, context), **options)),
        token=(sequence_bytes(architecture, 2 * far, **options) - sequence_bytes(architecture, far, **options)) // far,
    )
