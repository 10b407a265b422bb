"""Makes a row's numbers independent of the other rows of its step, on a CPU.

vLLM 0.32 has a batch-invariant mode for GPUs, and none for CPUs. In float32 three things let the last bits of a row's
numbers depend on what else is computed in the same step:

- Matrix products. oneDNN and MKL use another kernel for one row than for several, and may for other numbers of rows.
  ``RowBlocks`` multiplies only blocks of a few fixed sizes, which were seen to give equal bits on this machine.
- Attention. vLLM's kernel cuts the keys into pieces whose size depends on how many of a row's tokens are in the step,
  and on the other rows' lengths. ``same_attention.py`` lets the kernel see a few tokens at a time: then the size is
  always the same. The variable ``VLLM_CPU_ATTN_SPLIT_KV=0`` turns the rest off.
- Functions such as exp. torch computes most numbers of a tensor eight or sixteen at a time, and the last ones of each
  thread's share one by one, with another exp. The variable ``ATEN_CPU_CAPABILITY=default`` gives all the same exp.

Measured with SmolLM2-135M in float32 on two cores with AVX-512 (CPU seconds of the core, without and with all this): 60
prompts of 250 tokens 27.6 and 25.7, 64 answers of 60 tokens 13.7 and 14.8, three answers one by one 10.4 and 12.9.

``engine/setup/reproducible.py`` sets the variables. Import this module only in vLLM's core: it needs torch and vLLM.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from daft_vllm.engine.patches.cpu.same_attention import split, tokens_at_once
from daft_vllm.errors import EngineStartError

BLOCK = 16
"""Rows of the smallest block. Fewer rows are filled up with zeros."""
_LARGER = (256, 64)
"""Larger blocks, which save time. They are used where their bits equal those of the smallest."""
_TRIED = max(_LARGER)

Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""Multiplies rows by a weight, and adds a bias: ``layer.cpu_linear`` of vLLM's layers."""


def register_same_bits() -> None:
    """Apply the changes in this process. For vLLM's core on a CPU, before the model is loaded."""
    import vllm.model_executor.layers.utils as layers
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadataBuilder

    if getattr(CPUAttentionMetadataBuilder, "splits", False):
        return
    original_dispatch = layers.dispatch_cpu_unquantized_gemm
    original_build = CPUAttentionMetadataBuilder.build

    def dispatch(layer: Any, remove_weight: bool) -> None:
        is_matrix = not layer.weight.is_meta and layer.weight.ndim == 2
        shape = tuple(layer.weight.shape)
        original_dispatch(layer, remove_weight)
        if is_matrix:
            layer.cpu_linear = RowBlocks(layer.cpu_linear, layer.weight, shape)

    def build(self: Any, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Any:
        return original_build(self, common_prefix_len, split(common_attn_metadata, tokens_at_once(self)), fast_build)

    layers.dispatch_cpu_unquantized_gemm = dispatch
    CPUAttentionMetadataBuilder.build, CPUAttentionMetadataBuilder.splits = build, True


class RowBlocks:
    """A layer's matrix product, computed in blocks of rows.

    Args:
        linear: the product as vLLM computes it.
        weight: the layer's weight. vLLM may have emptied it, because ``linear`` has its own copy.
        shape: the weight's numbers of rows and of columns.

    Raises:
        EngineStartError: even blocks of one size give a row other bits in another place, or beside other rows.
    """

    def __init__(self, linear: Linear, weight: Tensor, shape: tuple[int, ...]) -> None:
        self._linear = linear
        self._sizes = _equal_sizes(shape, weight.dtype, lambda rows: linear(rows, weight, None))

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the products of the rows of ``x``, as ``linear`` does."""
        rows = x.reshape(-1, x.shape[-1])
        blocks = [self._block(rows[start : start + size], size, weight, bias) for start, size in self._cut(len(rows))]
        out = blocks[0] if len(blocks) == 1 else torch.cat(blocks)
        return out.reshape(*x.shape[:-1], out.shape[-1])

    def _cut(self, rows: int) -> list[tuple[int, int]]:
        """Return where each block starts, and its size."""
        cut: list[tuple[int, int]] = []
        start = 0
        while start < rows or not cut:
            size = next(size for size in self._sizes if size <= max(rows - start, BLOCK))
            cut.append((start, size))
            start += size
        return cut

    def _block(self, rows: Tensor, size: int, weight: Tensor, bias: Tensor | None) -> Tensor:
        if len(rows) < size:
            filled = torch.nn.functional.pad(rows, (0, 0, 0, size - len(rows)))
            return self._linear(filled, weight, bias)[: len(rows)]
        return self._linear(rows, weight, bias)


_seen: dict[tuple[tuple[int, ...], torch.dtype], tuple[int, ...]] = {}


def _equal_sizes(shape: tuple[int, ...], dtype: torch.dtype, product: Callable[[Tensor], Tensor]) -> tuple[int, ...]:
    """Return the sizes of blocks that give equal bits for weights of this shape, the largest first.

    What a kernel adds in which order depends on shapes, not on numbers. If an order differed, half of the random
    products below would differ in their last bit.

    Raises:
        EngineStartError: see ``RowBlocks``.
    """
    key = shape, dtype
    if key not in _seen:
        generator = torch.Generator().manual_seed(0)
        rows = torch.randn(_TRIED, shape[1], generator=generator).to(dtype)
        expected = torch.cat([product(block) for block in rows.split(BLOCK)])
        some = torch.randperm(_TRIED, generator=generator)[: 4 * BLOCK]
        alone = torch.cat([rows[:1], torch.zeros_like(rows[1:BLOCK])])
        if not torch.equal(
            torch.cat([product(block) for block in rows[some].split(BLOCK)]), expected[some]
        ) or not torch.equal(product(alone)[0], expected[0]):
            raise EngineStartError(
                "reproducible=True can't be had on this machine: a matrix product gives a row other bits in another "
                f"place among {BLOCK} rows. Leave reproducible out, or use another machine."
            )
        equal = [
            size for size in _LARGER if torch.equal(torch.cat([product(block) for block in rows.split(size)]), expected)
        ]
        _seen[key] = (*equal, BLOCK)
    return _seen[key]
