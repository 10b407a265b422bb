"""Thinking is split off by each of vLLM's parsers that a known model has; texts of toy tokens, no model is loaded."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from daft import col
from transformers import AutoTokenizer

from daft_vllm import prompt
from daft_vllm.engine.text.reasoning import ReasoningSplitter, Split
from daft_vllm.errors import OptionError
from daft_vllm.model_configs import known_models
from daft_vllm.udf.planning.conversation import BLIND_PARSERS

THINK = ("<think>", "</think>")
HARMONY = ("<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|return|>")
MARKS = {
    "deepseek_r1": THINK,
    "deepseek_v3": THINK,
    "deepseek_v4": THINK,
    "gemma4": ("<|channel>", "<channel|>"),
    "glm45": THINK,
    "hunyuan_a13b": ("<think>\n", "\n</think>\n<answer>\n"),
    "kimi_k2": THINK,
    "minimax_m2": THINK,
    "minimax_m3": ("<mm:think>", "</mm:think>"),
    "nemotron_v3": THINK,
    "olmo3": THINK,
    "openai_gptoss": (
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
    ),
    "qwen3": THINK,
    "seed_oss": ("<seed:think>", "</seed:think>"),
}
"""What begins and what ends the thinking. ``mistral`` needs a tokenizer of Mistral's own."""
TEXTS_ONLY = {"hunyuan_a13b", "olmo3"}
"""In the vocabularies of these models the marks are several tokens."""


def splitting(parser: str, folder: str) -> tuple[ReasoningSplitter, Any]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    marks = HARMONY if parser == "openai_gptoss" else () if parser in TEXTS_ONLY else MARKS[parser]
    tokenizer.add_special_tokens({"additional_special_tokens": [*marks, "<|im_end|>"]})
    return ReasoningSplitter(parser, tokenizer, None), tokenizer


def test_all_parsers_of_known_models_are_here() -> None:
    used = {config.prompting.reasoning_parser for config in known_models().values()} - {None, "mistral"}
    assert used == set(MARKS)


@pytest.mark.parametrize("parser", MARKS)
def test_thinking_is_split_off(parser: str, tiny: str) -> None:
    splitter, tokenizer = splitting(parser, tiny)
    begin, end = MARKS[parser]

    def split(text: str) -> Split:
        return splitter.split(tokenizer(text, add_special_tokens=False)["input_ids"])

    assert split(f"{begin}I wonder.{end}Yes.<|im_end|>") == Split("I wonder.", "Yes.")
    cut_off = split(f"{begin}I wonder.")
    assert (cut_off.answer, "I wonder." in cut_off.reasoning) == (None, True)
    if parser != "hunyuan_a13b":
        assert split(f"{end}Yes.") == Split("", "Yes.")


@pytest.mark.parametrize("parser", MARKS)
def test_vllm_finds_the_end_while_it_is_written(parser: str, tiny: str) -> None:
    """Else a format would begin too early, or never. Parsers that find it now can go from ``BLIND_PARSERS``."""
    splitter, tokenizer = splitting(parser, tiny)
    begin, end = MARKS[parser]
    found = splitter._class(tokenizer, chat_template_kwargs={"enable_thinking": True}, model_config=None)
    thought = tokenizer(f"{begin}I wonder{'' if parser == 'olmo3' else '.'}", add_special_tokens=False)["input_ids"]
    last = tokenizer(end, add_special_tokens=False)["input_ids"]
    ends = [found.is_reasoning_end_streaming(thought, thought[-1:])]
    ends.append(found.is_reasoning_end_streaming([*thought, *last], last))
    assert (ends == [False, True]) == (parser not in BLIND_PARSERS)


@pytest.mark.parametrize("model", ["gpt-oss-20b", "hunyuan-7b"])
def test_a_format_after_thinking_is_refused_where_it_would_not_be_enforced(model: str) -> None:
    fixed: dict[str, Any] = {"model": model, "gpus": 0, "use_process": True}
    with pytest.raises(OptionError, match="doesn't find where the thinking ends"):
        prompt(col("q"), Literal["yes", "no"], thinking=True, **fixed)
    prompt(col("q"), Literal["yes", "no"], **fixed)
    prompt(col("q"), thinking=True, **fixed)
