"""vLLM's tool parsers, as far as this package leans on them."""

from __future__ import annotations

import json

import pytest

from daft_vllm import OfflineEngine, Outcome
from daft_vllm.engine.request import ToolAnswer, Toolbox, ToolCall
from daft_vllm.engine.tools import ToolReader
from daft_vllm.errors import OptionError

NUMBERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
ADD = json.dumps({"type": "function", "function": {"name": "add", "description": "", "parameters": NUMBERS}})


@pytest.fixture
def reader(engine: OfflineEngine) -> ToolReader:
    llm = engine._state.core.llm
    return ToolReader(llm.renderer.get_tokenizer(), llm.model_config)


def read(reader: ToolReader, parser: str, text: str, finish_reason: str = "stop") -> Outcome:
    return reader.read(Outcome(text, finish_reason), [1, 2, 3], Toolbox((ADD,), parser), thinking=False)


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        ("hermes", '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'),
        ("pythonic", "[add(a=1, b=2)]"),
        ("phi4_mini_json", 'functools[{"name": "add", "arguments": {"a": 1, "b": 2}}]'),
        ("xlam", '[{"name": "add", "arguments": {"a": 1, "b": 2}}]'),
    ],
)
def test_calls_of_several_formats(reader: ToolReader, parser: str, text: str) -> None:
    outcome = read(reader, parser, text)
    assert outcome.error is None
    assert outcome.text == text
    assert outcome.tool_answer is not None
    (call,) = outcome.tool_answer.calls
    assert (call.name, json.loads(call.arguments)) == ("add", {"a": 1, "b": 2})
    assert outcome.tool_answer.content is None
    said = read(reader, parser, "Nothing to call here.")
    assert said.tool_answer == ToolAnswer("Nothing to call here.", ())
    assert said.error is None


def test_calls_that_are_not_whole(reader: ToolReader) -> None:
    """Parsers of vLLM 0.32 log a call that they can't read, and give it out as text."""
    broken = read(reader, "hermes", 'Yes. <tool_call>\n{"name": "add", "arguments": {"a": 1\n</tool_call>')
    assert broken.error is not None
    assert broken.error.code == "invalid_output"
    assert "'<tool_call>'" in broken.error.message
    cut = read(reader, "hermes", "Yes, it is", "length")
    assert cut.error is not None
    assert cut.error.code == "truncated"
    two = '<tool_call>{"name": "add", "arguments": {}}</tool_call>' * 2
    assert read(reader, "hermes", two).tool_answer == ToolAnswer(None, (ToolCall("add", "{}"),) * 2)
    failed = Outcome.failed("engine_error", "x")
    assert reader.read(failed, [], Toolbox((ADD,), "hermes"), thinking=False) is failed


def test_special_tokens_are_kept_where_a_parser_looks_for_them(reader: ToolReader) -> None:
    assert reader.keeps_special_tokens(Toolbox((ADD,), "hermes"), thinking=False)
    assert reader.told(Toolbox((ADD,), "hermes")) == [json.loads(ADD)]


def test_parsers_that_cannot_be_used(reader: ToolReader) -> None:
    with pytest.raises(OptionError, match=r"no tool parser 'hermse'\. Did you mean 'hermes'"):
        read(reader, "hermse", "x")
    with pytest.raises(OptionError, match="can't be used with this model"):
        read(reader, "mistral", "x")  # looks for a token that SmolLM2 doesn't have
    with pytest.raises(OptionError, match="can't be used with this model"):
        read(reader, "llama3_json", "x")
