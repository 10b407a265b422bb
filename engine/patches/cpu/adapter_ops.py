"""Keeps rows without an adapter apart from rows with one, in a batch on a CPU.

vLLM 0.32 gives rows without an adapter the index -1. Its CPU operators read -1 as the last index, so such rows get the
weights of the last adapter (on a GPU they are left alone). The operators here set the inputs of such rows to zero.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

_FIXED = ("bgmv_shrink", "bgmv_expand", "bgmv_expand_slice")


def fix_adapter_ops() -> None:
    """Replace vLLM's operators by fixed ones, on a CPU. For vLLM's core process."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.lora.ops.torch_ops import lora_ops
    from vllm.lora.punica_wrapper import punica_cpu

    for name in _FIXED:
        theirs = getattr(lora_ops, name)
        fixed = without_negative_rows(getattr(theirs, "__wrapped__", theirs))
        for module in (lora_ops, punica_cpu):
            if hasattr(module, name):
                setattr(module, name, fixed)


def without_negative_rows(operator: Callable[..., Any]) -> Callable[..., Any]:
    """Return an operator that reads a row with a negative index as zeros, so that its result is zero too."""

    @functools.wraps(operator)
    def fixed(inputs: Any, weights: Any, output: Any, indices: Any, *args: Any, **kwargs: Any) -> Any:
        mask = (indices >= 0).to(inputs.dtype).unsqueeze(-1)
        return operator(inputs * mask, weights, output, indices, *args, **kwargs)

    return fixed
