"""Registers vLLM's own compiled kernels for RMS normalization as implementations of vLLM's operators on CPUs.

Import this module only in vLLM's core: it needs torch and vLLM.
"""

from __future__ import annotations

import torch
from torch import Tensor
from vllm import ir
from vllm.platforms import current_platform

from daft_vllm.engine.setup.environment import CPU_KERNELS

_VECTOR = 16
"""The most elements that a kernel takes at once. It refuses a size that is not a multiple of its number."""
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def register_cpu_kernels() -> None:
    """Offer the kernels to vLLM in this process, if its CPU build has them.

    vLLM's ``kernel_config`` decides whether they are used. For arguments that they don't support, vLLM uses its own
    implementation.
    """
    if CPU_KERNELS in ir.ops.rms_norm.impls:
        return
    current_platform.import_kernels()
    built = hasattr(torch.ops._C, "fused_add_rms_norm")
    ir.ops.rms_norm.register_impl(CPU_KERNELS, supported=built, supports_args=_one)(_rms_norm)
    ir.ops.fused_add_rms_norm.register_impl(CPU_KERNELS, supported=built, supports_args=_pair, inplace=True)(
        _fused_add_rms_norm
    )


def _rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    x = x.contiguous()  # if queries and keys are normalized head by head, they are views
    out = torch.empty_like(x)
    torch.ops._C.rms_norm(out, x, weight, epsilon)
    return out


def _fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    torch.ops._C.fused_add_rms_norm(x, x_residual, weight, epsilon)
    return x, x_residual


# The kernels get raw pointers, and would read some tensors wrongly. These two functions leave such tensors to vLLM.
def _one(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> bool:
    return (
        variance_size is None
        and weight is not None
        and weight.dtype == x.dtype
        and x.dtype in _DTYPES
        and weight.shape == x.shape[-1:]
        and weight.is_contiguous()
        and x.shape[-1] % _VECTOR == 0
    )


def _pair(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool:
    return (
        _one(x, weight, epsilon, variance_size)
        and x.dtype == x_residual.dtype
        and x.shape == x_residual.shape
        and x.is_contiguous()
        and x_residual.is_contiguous()
    )
