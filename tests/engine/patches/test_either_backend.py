"""Token masks of both grammar libraries, where a tokenizer has more tokens than the model has logits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from daft_vllm.engine.constraints.libraries.guidance import GUIDANCE_MARK
from daft_vllm.engine.patches.either_backend import _backend_class

GRAMMAR = '{"grammars": [{"lark_grammar": "start: /[a-z]{3,9}/"}]}'


@pytest.fixture(scope="module")
def tokenizer(smollm2: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(smollm2)


def backend(tokenizer: Any, vocab_size: int) -> Any:
    from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend

    options = SimpleNamespace(disable_any_whitespace=False, disable_additional_properties=False)
    config = SimpleNamespace(structured_outputs_config=options, model_config=None, speculative_config=None)
    return _backend_class(XgrammarBackend)(config, tokenizer, vocab_size)


@pytest.mark.parametrize("fewer", [0, 1, 32, 1000])
@pytest.mark.parametrize("library", ["xgrammar", "guidance"])
def test_a_mask_has_a_bit_for_each_logit(tokenizer: Any, library: str, fewer: int) -> None:
    """vLLM's GPU runner has room for no more: it copies the rows into a buffer of that width."""
    from vllm.v1.structured_output.backend_types import StructuredOutputOptions

    masks = []
    for vocab_size in (len(tokenizer), len(tokenizer) - fewer):
        made = backend(tokenizer, vocab_size)
        if library == "guidance":
            grammar = made.compile_grammar(StructuredOutputOptions.GRAMMAR, GUIDANCE_MARK + GRAMMAR)
        else:
            grammar = made.compile_grammar(StructuredOutputOptions.REGEX, "[a-z]{3,9}")
        mask = made.allocate_token_bitmask(2)
        grammar.fill_bitmask(mask, 1)
        assert mask.shape == (2, -(-vocab_size // 32))
        assert (mask[0] == -1).all(), "other rows are left as they are"
        bits = (mask[1].unsqueeze(1) >> torch.arange(32)) & 1
        masks.append(bits.flatten()[: len(tokenizer) - fewer])
    assert torch.equal(masks[0], masks[1])
    assert masks[0][tokenizer.convert_tokens_to_ids("cat")] == 1
    assert masks[0][tokenizer.convert_tokens_to_ids("C")] == 0
