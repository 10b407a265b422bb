"""Masks that are added from a table have the same effect as xgrammar's kernel."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
xgrammar = pytest.importorskip("xgrammar")


@pytest.mark.parametrize("vocabulary", [64, 1000, 49152])
@pytest.mark.parametrize("rows", [[0, 1, 2, 3], [2, 0], [3], []])
def test_forbidden_tokens_are_out_and_no_others(vocabulary: int, rows: list[int]) -> None:
    from daft_vllm.engine.patches.cpu.masks import add_masks

    torch.manual_seed(1)
    logits = torch.randn(4, vocabulary).to(torch.bfloat16)
    masks = torch.randint(-(2**31), 2**31 - 1, (len(rows), -(-vocabulary // 32)), dtype=torch.int32)
    expected = logits.float()
    if rows:
        whole = torch.full((4, masks.shape[1]), -1, dtype=torch.int32)
        whole[rows] = masks
        xgrammar.apply_token_bitmask_inplace(expected, whole)
    add_masks(logits, rows, masks.numpy())
    assert torch.equal(logits.float(), expected)
