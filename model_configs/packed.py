"""The KV cache of DeepSeek-V4, in which layers of several kinds share blocks of one size.

vLLM packs the layers of a kind side by side into a block. Its numbers are those of 0.32 for the layout
``fp8_ds_mla``, the one that Hopper has: ``vllm/models/deepseek_v4/attention.py`` and ``compressor.py``,
``vllm/v1/attention/backends/mla/sparse_swa.py``, and ``_get_packed_kv_cache_groups`` in
``vllm/v1/core/kv_cache_utils.py``.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

_SPARSE, _HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
_TOKENS = 256
"""Tokens of a block of compressed entries."""
_WINDOW_TOKENS = 64
"""Tokens of a block of the sliding window."""
_STATE_TOKENS = {_SPARSE: 4, _HEAVY: 8}
"""Tokens of a block of what a compressor hasn't compressed yet."""
_ALIGNED = 576
"""Each layer's part of a block is a multiple of these bytes."""


@dataclass(frozen=True)
class PackedCache:
    """Blocks of one size, each for layers of one kind.

    Args:
        block_bytes: bytes of a block, on every GPU.
        kinds: for each kind that takes blocks, the tokens of a block and the tokens that are kept. None: all.
    """

    block_bytes: int
    kinds: tuple[tuple[int, int | None], ...]

    def sequence_bytes(self, tokens: int, batched_tokens: int) -> int:
        """Return the bytes of a sequence of ``tokens`` of which one step adds up to ``batched_tokens``."""
        blocks = 0
        for size, window in self.kinds:
            kept = tokens if window is None else min(tokens, window - 1 + batched_tokens)
            blocks += math.ceil(kept / size) + (window is not None)
        return blocks * self.block_bytes


def packed_cache(text: Any) -> PackedCache | None:
    """Return how vLLM packs the cache of a model with this Hugging Face config. None: it doesn't."""
    if text.model_type != "deepseek_v4":
        return None
    layers = Counter(text.layer_types)
    rotated = text.qk_rope_head_dim
    entry = text.head_dim - rotated + 2 * rotated + 8  # 8 bits a number, 16 where it is rotated, and the scales
    key = text.index_head_dim + text.index_head_dim // 128 * 4  # the same as DeepSeek-V3.2's
    rates = text.compress_rates
    sparse, heavy = rates[_SPARSE], rates[_HEAVY]
    entries = layers[_SPARSE] * (_aligned(entry * _TOKENS // sparse) + _aligned(key * _TOKENS // sparse))
    block = entries + layers[_HEAVY] * _aligned(entry * _TOKENS // heavy)
    # A compressor keeps keys and scores in 32 bits, one that overlaps its windows twice as many.
    overlapping = [_aligned(_STATE_TOKENS[_SPARSE] * 16 * width) for width in (text.head_dim, text.index_head_dim)]
    kinds = [
        (text.num_hidden_layers * _aligned(entry * _WINDOW_TOKENS), _WINDOW_TOKENS, text.sliding_window),
        (layers[_SPARSE] * sum(overlapping), _STATE_TOKENS[_SPARSE], 2 * sparse),
        (layers[_HEAVY] * _aligned(_STATE_TOKENS[_HEAVY] * 8 * text.head_dim), _STATE_TOKENS[_HEAVY], heavy),
    ]
    shared = [(size, window) for total, size, window in kinds for _ in range(math.ceil(total / block))]
    return PackedCache(block, ((_TOKENS, None), *shared))


def looked_at(text: Any) -> list[tuple[int, int]]:
    """Return how many layers of each kind there are, and how many entries a token looks at in each."""
    more = {_SPARSE: text.index_topk}
    return [(number, text.sliding_window + more.get(kind, 0)) for kind, number in Counter(text.layer_types).items()]


def _aligned(size: int) -> int:
    return math.ceil(size / _ALIGNED) * _ALIGNED
