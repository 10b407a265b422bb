"""Estimates the GPU memory beside weights and cache: a step's intermediate results, CUDA graphs, CUDA and NCCL.

The numbers are fitted to what vLLM 0.11 to 0.31 logged at its start on H100, A100, L4 and other cards
(``benchmarks/parts/gpu_logs.py``).
"""

from __future__ import annotations

from daft_vllm.model_configs.architecture import Architecture, Encoder
from daft_vllm.model_configs.cards import GIB

CONTEXT_BYTES = int(0.3 * GIB)
"""CUDA's context and kernels: "non-torch" memory of one GPU, 0.24 to 0.27 GiB in the logs."""
NCCL_BYTES = int(1.85 * GIB)
"""Additional non-torch memory where the model is split over GPUs. In the logs the sum is then 2.06 to 2.21 GiB."""
_LOGITS = 3.75
"""Matrices that the sampler has in memory at its peak. Each has 32-bit numbers, a row for each sequence and a column
for each token of the vocabulary. In most models they take more memory than a layer."""

_STATES = 5
"""How many copies of the hidden states of an image's patches are in memory at a layer's peak."""
_ROTARY_STATES = 13
"""The same for an encoder that rotates queries and keys by their positions, in 32 bits."""


def activation_bytes(
    architecture: Architecture, *, batched_tokens: int, sequences: int, tensor_parallel: int = 1
) -> int:
    """Return the bytes of the largest intermediate results of a step on each GPU.

    Args:
        architecture: the model's architecture.
        batched_tokens: tokens of a step, vLLM's ``max_num_batched_tokens``.
        sequences: sequences of a step, vLLM's ``max_num_seqs``.
        tensor_parallel: GPUs that the model is split over.
    """
    row = architecture.hidden_size * 2
    layer = batched_tokens * (3 * architecture.intermediate_size // tensor_parallel * 2 + 4 * row)
    sampler = int(_LOGITS * sequences * architecture.vocabulary * 4) + batched_tokens * row
    encoder = 0
    if architecture.encoder is not None:
        encoder = encoder_bytes(architecture.encoder, batched_tokens=batched_tokens, tensor_parallel=tensor_parallel)
    # The buffers of the experts' kernels stay allocated, so they are added.
    experts = architecture.experts_per_token * batched_tokens * (2 * architecture.expert_size * 2 + row)
    return max(layer, sampler, encoder) + experts


def encoder_bytes(encoder: Encoder, *, batched_tokens: int, tensor_parallel: int = 1) -> int:
    """Return the bytes of an image encoder's largest intermediate results: a step's images are encoded at once."""
    patches = max(batched_tokens, encoder.largest_image) * encoder.patches_per_token
    states = (_ROTARY_STATES if encoder.rotary else _STATES) * encoder.hidden_size
    return patches * (states + (3 if encoder.gated else 2) * encoder.intermediate_size // tensor_parallel) * 2


def graph_bytes(architecture: Architecture) -> int:
    """Return the bytes that CUDA graphs take: 0.5 to 1.8 GiB by vLLM's own estimates, more with more layers."""
    return int((0.2 + 0.02 * architecture.layers) * GIB)
