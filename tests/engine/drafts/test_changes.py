"""Changes of vLLM's sampler, beside vLLM's own."""

from __future__ import annotations

import pytest
import torch

from daft_vllm.engine.drafts.changes import expand_to_tokens


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_values_are_repeated_for_each_guess(dtype: torch.dtype) -> None:
    values = torch.tensor([3, 0, 1, 2], dtype=dtype)
    counts = torch.tensor([2, 2, 5, 6], dtype=torch.int32)
    assert expand_to_tokens(values, counts, 6).tolist() == [3, 3, 1, 1, 1, 2]
    values = torch.tensor([0, 7], dtype=dtype)
    assert expand_to_tokens(values, torch.tensor([3, 4]), 4, 0, 1).tolist() == [1, 1, 1, 7]


def test_vllm_s_own_function_is_still_wrong_on_a_cpu() -> None:
    """If this fails, vLLM has mended it, and ours can go."""
    from vllm.platforms import current_platform
    from vllm.utils.cpu_triton_utils import _expand_kernel_impl

    if not current_platform.is_cpu():
        pytest.skip("vLLM is a build for GPUs")
    current_platform.import_kernels()
    found = torch.full((5,), -1.0)
    _expand_kernel_impl(found, torch.tensor([0.5, 0.25]), torch.tensor([2, 5], dtype=torch.int32), 0, 0)
    assert found.tolist() == [-1.0] * 5
