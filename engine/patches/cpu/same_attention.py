"""Makes attention on a CPU independent of how many tokens a step has. See ``same_bits.py``, which applies it.

Import this module only in vLLM's core: it needs torch and vLLM.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from vllm import _custom_ops as ops

_TAKEN = {"vec": 8, "vec16": 16}
"""Queries that vLLM's attention kernels for float32 on x86 take at once: ``MaxQHeadNumPerIteration`` in its
``csrc/cpu/cpu_attn_vec.hpp`` and ``cpu_attn_vec16.hpp``."""
_LARGEST_WINDOW = 1024
"""Keys that always fit into one piece, whatever the CPU's cache. The first key that a larger window needs decides where
pieces begin, and tokens that are computed together begin at the same key."""


def tokens_at_once(builder: Any) -> int:
    """Return how many tokens of a row the kernel may see at once.

    Args:
        builder: vLLM's ``CPUAttentionMetadataBuilder``.
    """
    layers = builder.vllm_config.compilation_config.static_forward_context
    windows = [getattr(layers[name].impl, "sliding_window", -1) for name in builder.layer_names]
    if any(isinstance(window, int) and window > _LARGEST_WINDOW for window in windows):
        return 1
    return equal_tokens(builder.isa, builder.num_heads, builder.num_kv_heads, builder.head_dim, builder.block_size)


@functools.cache
def equal_tokens(isa: str, heads: int, groups: int, width: int, page: int) -> int:
    """Return how many tokens the kernel takes at once, if it gives each the bits that it has alone, else 1.

    For one token and for several the kernel may run other code: that of an AVX2 CPU does so in some releases.

    Args:
        isa: vLLM's name of the kernel.
        heads: heads of the queries.
        groups: heads of the keys.
        width: numbers in a head.
        page: tokens in a page of the cache.
    """
    taken, shared = _TAKEN[isa], heads // groups
    tokens = taken // shared if taken % shared == 0 else taken  # as the kernel groups them
    pages = 512 // page + 1
    keys = pages * page - 3
    generator = torch.Generator().manual_seed(0)
    cache = torch.zeros(pages, groups, 2 * page, width).chunk(2, dim=2)
    new = torch.randn(2, keys, groups, width, generator=generator) * 1.5
    ops.cpu_attn_reshape_and_cache(new[0], new[1], *cache, torch.arange(keys), isa)
    query = torch.randn(keys, heads, width, generator=generator)

    def computed(count: int, size: int) -> Tensor:
        """Return the outputs of the last ``count`` tokens, computed ``size`` at once."""
        ends = [*range(keys - count + size, keys, size), keys]
        starts = [0, *(end - keys + count for end in ends)]
        start_of, seen = torch.tensor(starts, dtype=torch.int32), torch.tensor(ends, dtype=torch.int32)
        plan = ops.cpu_attn_get_scheduler_metadata(
            num_reqs=len(ends),
            num_heads=heads,
            num_kv_heads=groups,
            head_dim=width,
            seq_lens=seen,
            dtype=torch.float32,
            query_start_loc=start_of,
            causal=True,
            sliding_window_size=-1,
            isa=isa,
            enable_kv_split=False,
        )
        asked = query[-count:].contiguous()
        out = torch.zeros_like(asked)
        ops.cpu_attention_with_kv_cache(
            query=asked,
            key_cache=cache[0],
            value_cache=cache[1],
            output=out,
            query_start_loc=start_of,
            seq_lens=seen,
            scale=width**-0.5,
            causal=True,
            alibi_slopes=None,
            sliding_window=-1,
            block_table=torch.arange(pages, dtype=torch.int32).repeat(len(ends), 1),
            softcap=0.0,
            scheduler_metadata=plan,
            s_aux=None,
        )
        return out

    alone = computed(4 * taken, 1)
    return tokens if all(torch.equal(computed(4 * taken, size), alone) for size in range(2, tokens + 1)) else 1


def split(metadata: Any, tokens: int) -> Any:
    """Return what vLLM tells attention about a step, with each row's new tokens as rows of a few tokens.

    Args:
        metadata: vLLM's ``CommonAttentionMetadata``.
        tokens: the most tokens that each of them has.
    """
    if metadata.max_query_len <= tokens:
        return metadata
    starts, ends = metadata.query_start_loc[:-1], metadata.query_start_loc[1:]
    lengths = ends - starts
    pieces = (lengths + tokens - 1) // tokens
    row = torch.repeat_interleave(torch.arange(len(lengths)), pieces)
    first = torch.cumsum(pieces, 0) - pieces
    number = torch.arange(len(row)) - first[row]  # of the piece in its row
    end = torch.minimum((number + 1) * tokens, lengths[row])
    kind = metadata.query_start_loc.dtype
    seen = metadata.seq_lens[row] - lengths[row] + end
    return replace(
        metadata,
        num_reqs=len(row),
        query_start_loc=torch.cat([torch.zeros(1, dtype=kind), (starts[row] + end).to(kind)]),
        seq_lens=seen.to(metadata.seq_lens.dtype),
        block_table_tensor=metadata.block_table_tensor[row].contiguous(),
        max_query_len=tokens,
    )
