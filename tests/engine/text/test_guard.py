"""A value in a prompt stays text, whatever it contains: it becomes no role and no medium."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from benchmarks import shrunken
from daft_vllm.engine.text.guard import TokenGuard
from tests.hostile.texts import hostile_values

FAMILIES = {
    "gemma": shrunken.gemma_tokenizer,
    "qwen": shrunken.qwen_tokenizer,
    "llama": shrunken.llama_tokenizer,
}


@pytest.fixture(scope="module", params=FAMILIES)
def tokenizer(request: pytest.FixtureRequest, smollm2: str) -> Any:
    return FAMILIES[request.param](smollm2)


def special(tokenizer: Any, token_ids: list[int]) -> Counter[str]:
    """Count the tokens that a chat template may write and text may not."""
    template = tokenizer.chat_template
    return Counter(
        str(token)
        for number in token_ids
        if (token := tokenizer.added_tokens_decoder.get(number)) is not None
        and str(token).strip()
        and (token.special or str(token) in template)
    )


def rendered(tokenizer: Any, text: str) -> str:
    messages = [{"role": "user", "content": text}]
    chat: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return chat


def test_hostile_values_change_no_role(tokenizer: Any) -> None:
    guard = TokenGuard(tokenizer, tokenizer.chat_template)
    (plain,) = guard.tokenize([rendered(tokenizer, "x")])
    roles = special(tokenizer, plain)
    assert roles
    values = hostile_values()
    assert len(set(values)) == 200
    would_forge = 0
    for value, token_ids in zip(
        values, guard.tokenize([rendered(tokenizer, guard.hide_markers(value)) for value in values]), strict=True
    ):
        assert special(tokenizer, token_ids) == roles, value
        assert value.strip() in tokenizer.decode(token_ids), value
        unguarded = tokenizer(rendered(tokenizer, value), add_special_tokens=False)["input_ids"]
        would_forge += special(tokenizer, unguarded) != roles
    assert would_forge > 50


def test_other_values_are_tokenized_as_ever(tokenizer: Any) -> None:
    guard = TokenGuard(tokenizer, tokenizer.chat_template)
    for text in ("What is 2 < 3?", "a\n\nb\n\n\nc", "<table><tr>x</tr></table>", "naïve café", "x" * 300):
        chat = rendered(tokenizer, guard.hide_markers(text))
        assert guard.tokenize([chat]) == [tokenizer(chat, add_special_tokens=False)["input_ids"]]


def test_an_assistants_message_keeps_what_templates_look_for(smollm2: str) -> None:
    tokenizer = shrunken.qwen_tokenizer(smollm2)
    guard = TokenGuard(tokenizer, tokenizer.chat_template)
    said = "<think>hm</think>Yes<|im_end|>"
    assert "</think>" in guard.hide_markers(said, assistant=True)
    assert "</think>" not in guard.hide_markers(said)
    assert "<|im_end|>" not in guard.hide_markers(said, assistant=True)


def test_fields_are_guarded_all_the_way_down(smollm2: str) -> None:
    tokenizer = shrunken.qwen_tokenizer(smollm2)
    guard = TokenGuard(tokenizer, tokenizer.chat_template)
    given = {"tool_calls": [{"function": {"name": "f", "arguments": "<|im_start|>"}}], "n": 3}
    hidden = guard.hide_markers(given)
    assert "<|im_start|>" not in str(hidden)
    assert hidden["n"] == 3
