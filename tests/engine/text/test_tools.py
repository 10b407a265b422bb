"""What this package relies on in vLLM's tool parsers."""

from __future__ import annotations

import json

import pytest

from benchmarks import shrunken
from daft_vllm import OfflineEngine, Outcome
from daft_vllm.engine.requests.toolbox import ToolAnswer, Toolbox, ToolCall
from daft_vllm.engine.text.tools import ToolReader
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
    """Parsers of vLLM 0.32 log a call that they can't read, and return it as text."""
    broken = read(reader, "hermes", 'Yes. <tool_call>\n{"name": "add", "arguments": {"a": 1\n</tool_call>')
    assert broken.error is not None
    assert broken.error.code == "invalid_output"
    assert "'<tool_call>'" in broken.error.message
    cut = read(reader, "hermes", "Yes, it is", "length")
    assert cut.error is not None
    assert cut.error.code == "truncated"
    two = '<tool_call>{"name": "add", "arguments": {}}</tool_call>' * 2
    assert read(reader, "hermes", two).tool_answer == ToolAnswer(None, (ToolCall("add", "{}"),) * 2)
    for parser, text in (
        ("pythonic", "[add(a=1, b=foo)]"),
        ("xlam", '[{"name": "add", "arguments": {"a": 1'),
        ("qwen3_xml", 'Sure. <tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'),
        ("qwen3_xml", "<tool_call>\n<function=add>\n<parameter=a>1"),
        ("phi4_mini_json", 'functools[{"name": "add"'),
        ("hermes", '<tool_call>{"name": "add", "arguments": {}}</tool_call><tool_call>{"name": "ad</tool_call>'),
    ):
        outcome = read(reader, parser, text)
        assert outcome.error is not None, (parser, outcome)
        assert "that can't be read" in outcome.error.message
    # A text that only mentions a call is not a call.
    for parser, text in (
        ("phi4_mini_json", "You can cache it with functools.lru_cache."),
        ("hermes", "A model writes <tool_call> before a call."),
    ):
        assert read(reader, parser, text).tool_answer == ToolAnswer(text, ())
    failed = Outcome.failed("engine_error", "x")
    assert reader.read(failed, [], Toolbox((ADD,), "hermes"), thinking=False) is failed


def test_thinking_comes_before_the_calls(engine: OfflineEngine, smollm2: str) -> None:
    llm = engine._state.core.llm
    reader = ToolReader(shrunken.qwen_tokenizer(smollm2), llm.model_config, "qwen3")

    def read(text: str) -> Outcome:
        return reader.read(Outcome(text, "stop"), [1, 2, 3], Toolbox((ADD,), "hermes"), thinking=True)

    call = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    outcome = read(f"maybe I call it\n</think>\n\n{call}")
    assert outcome.reasoning == "maybe I call it"
    assert outcome.tool_answer == ToolAnswer(None, (ToolCall("add", '{"a": 1}'),))
    unended = read("I will never end thinking").error
    assert unended is not None
    assert "thinking never ended" in unended.message
    broken = read('a</think>I say <tool_call>{"name": "add"a').error
    assert broken is not None
    assert "can't be read" in broken.message
    assert read("a</think>Nothing.").tool_answer == ToolAnswer("Nothing.", ())


def test_special_tokens_are_kept_where_a_parser_looks_for_them(reader: ToolReader) -> None:
    assert reader.keeps_special_tokens(Toolbox((ADD,), "hermes"), thinking=False)
    assert reader.definitions(Toolbox((ADD,), "hermes")) == [json.loads(ADD)]


def test_parsers_that_cannot_be_used(reader: ToolReader) -> None:
    with pytest.raises(OptionError, match=r"no tool parser 'hermse'\. Did you mean 'hermes'"):
        read(reader, "hermse", "x")
    with pytest.raises(OptionError, match="can't be used with this model"):
        read(reader, "mistral", "x")  # looks for a token that SmolLM2 doesn't have
    with pytest.raises(OptionError, match="can't be used with this model"):
        read(reader, "llama3_json", "x")
