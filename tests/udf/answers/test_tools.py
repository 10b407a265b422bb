"""Tools: what the model calls is parsed, validated, and typed; or the row says why not."""

from __future__ import annotations

import json
import pickle
import re
from typing import Any, Literal

import daft
import pytest
from daft import DataType, col
from daft.functions import prompt as daft_prompt
from pydantic import BaseModel, Field

from daft_vllm import OfflineEngine, Provider, prompt
from daft_vllm.engine import Outcome
from daft_vllm.engine.requests.toolbox import ToolAnswer, ToolCall
from daft_vllm.errors import ModelError, OptionError, SchemaError
from daft_vllm.udf.answers.formats import Tools
from daft_vllm.udf.answers.tools import CallFormat
from tests.conftest import ENGINE_ARGS
from tests.helpers import code_of

TEMPLATE = """{% if tools %}<|im_start|>system
You may call functions. Call one with <tool_call>{"name": ..., "arguments": {...}}</tool_call>.
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def add(a: int, b: int) -> int:
    """Add two numbers."""
    raise AssertionError("nothing is called")


def weather(city: str, days: int = 1) -> str:
    """Tell the weather of a city."""
    raise AssertionError("nothing is called")


class Search(BaseModel):
    """Search the catalogue."""

    kind: Literal["book", "film"]
    words: list[str] = Field(min_length=1, max_length=2)


def call(name: str, arguments: dict[str, Any]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


EXAMPLES = [
    ("What is 2 plus 3?", call("add", {"a": 2, "b": 3})),
    ("Say hello.", "Hello!"),
    ("How is the weather in Rome?", call("weather", {"city": "Rome"})),
]


@pytest.mark.other_engine
def test_a_model_calls_as_its_template_tells_it(smollm2: str) -> None:
    """SmolLM2 wasn't trained on tools; shown how, it calls them, and now and then gets them wrong."""
    questions = ["How is the weather in Paris?", "Say goodbye.", None, "How is the weather in Oslo?", "Count " * 30]
    df = daft.from_pydict({"id": list(range(5)), "q": questions, "n": [60, 60, 60, 12, 60]})
    fixed: dict[str, Any] = {"model": smollm2, "engine_args": ENGINE_ARGS, "gpus": 0, "chat_template": TEMPLATE}
    fixed |= {"tools": [add, weather], "tool_parser": "hermes", "examples": EXAMPLES}
    asked = prompt(col("q"), use_process=False, details=True, max_tokens=col("n"), **fixed)
    rows = df.with_column("a", asked).to_pylist()
    assert [row["id"] for row in rows] == list(range(5))
    answers = [row["a"] for row in rows]
    assert answers[0]["value"] == {
        "content": None,
        "tool_calls": [{"name": "weather", "arguments": '{"city": "Paris"}'}],
    }
    assert answers[0]["text"] == call("weather", {"city": "Paris"})
    assert answers[1]["value"]["content"]
    assert answers[1]["value"]["tool_calls"] == []
    assert (answers[2]["value"], answers[2]["error"], answers[2]["finish_reason"]) == (None, None, "null_prompt")
    assert answers[3]["error"].startswith("truncated: the answer was cut off, and with it maybe a call")
    assert answers[3]["text"].startswith("<tool_call>")
    # Through Daft's own prompt it is the same, as JSON.
    theirs = daft_prompt(col("q"), provider=Provider(**fixed), max_tokens=60)
    first = df.limit(1).select(theirs.alias("a")).to_pydict()["a"][0]
    assert json.loads(first) == answers[0]["value"]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"tool_choice": "weather"}, {"weather"}),
        ({"tool_choice": "Search"}, {"Search"}),
        ({"tool_choice": "required", "parallel_tool_calls": False}, {"add", "weather", "Search"}),
    ],
)
def test_calls_that_are_asked_for(
    engine: OfflineEngine, smollm2: str, form: CallFormat, options: dict[str, Any], names: set[str]
) -> None:
    df = daft.from_pydict({"q": ["How is the weather in Rome?", None, "What is 5 plus 8?", "A book about whales"]})
    fixed: dict[str, Any] = {"model": smollm2, "engine_args": ENGINE_ARGS, "gpus": 0, "use_process": False}
    asked = prompt(col("q"), tools=[add, weather, Search], **{"max_tokens": 80, **fixed, **options}, details=True)
    df = df.with_column("a", asked).collect()
    call_type = DataType.struct({"name": DataType.string(), "arguments": DataType.string()})
    value = DataType.struct({"content": DataType.string(), "tool_calls": DataType.list(call_type)})
    assert df.schema()["a"].dtype.fields["value"] == value
    rows = df.to_pydict()["a"]
    assert [code_of(row) for row in rows] == [None, "null_prompt", None, None]
    for row in (rows[0], *rows[2:]):
        assert row["value"]["content"] is None
        assert len(row["value"]["tool_calls"]) == 1
        for one in row["value"]["tool_calls"]:
            assert one["name"] in names
            assert form.parse_outcome(None, outcome((one["name"], one["arguments"]))).error is None


def test_a_model_that_knows_no_tools(engine: OfflineEngine, smollm2: str) -> None:
    fixed: dict[str, Any] = {"model": smollm2, "engine_args": ENGINE_ARGS, "gpus": 0, "use_process": False}
    df = daft.from_pydict({"q": ["hello"]})
    with pytest.raises(ModelError, match="has no place for tools"):
        df.select(prompt(col("q"), tools=[add], tool_parser="hermes", **fixed)).collect()
    with pytest.raises(OptionError, match=r"no tool parser 'hermse'\. Did you mean 'hermes'"):
        df.select(prompt(col("q"), tools=[add], tool_parser="hermse", **fixed)).collect()


@pytest.fixture
def form() -> CallFormat:
    return CallFormat.of_tools(Tools([add, weather, Search]), "auto", parallel=True, enforce="strict", backend="auto")


def outcome(*calls: tuple[str, str], content: str | None = None) -> Outcome:
    return Outcome("raw", "stop", tool_answer=ToolAnswer(content, tuple(ToolCall(*call) for call in calls)))


def test_calls_are_validated(form: CallFormat) -> None:
    good = form.parse_outcome(None, outcome(("add", '{"a": 1, "b": 2}'), ("Search", '{"kind":"book","words":["x"]}')))
    assert good.error is None
    assert [one["name"] for one in good.value["tool_calls"]] == ["add", "Search"]
    assert form.parse_outcome(None, outcome(content="hi")).value == {"content": "hi", "tool_calls": []}
    for name, arguments, says in (
        ("sub", "{}", "called 'sub': there is no such tool, but add, weather, Search"),
        ("add", '{"a": 1}', "'b' is a required property"),
        ("add", '{"a": 1, "b": "2"}', r"\$.b: '2' is not of type 'integer'"),
        ("add", '{"a": 1', "not JSON"),
        ("add", '{"a": NaN, "b": 1}', "not JSON"),
        ("Search", '{"kind": "song", "words": ["x"]}', "'song' is not one of"),
        ("Search", '{"kind": "film", "words": []}', "words"),
        ("add", '{"a": "\ud83d"}', "can't be read"),
    ):
        error = form.parse_outcome(None, outcome((name, arguments))).error
        assert error is not None
        assert error.code == "invalid_output"
        assert re.search(says, error.message), error.message
    one = CallFormat.of_tools(Tools([add]), "auto", parallel=False, enforce="strict", backend="auto")
    twice = one.parse_outcome(None, outcome(("add", '{"a": 1, "b": 2}'), ("add", '{"a": 1, "b": 2}')))
    assert twice.error is not None
    assert "2 calls" in twice.error.message
    assert pickle.loads(pickle.dumps(form)) == form
    several = CallFormat.of_tools(Tools([add, Search]), "required", parallel=True, enforce="strict", backend="auto")
    assert several.constraint is not None
    schema = json.loads(several.constraint.json_schema or "")
    assert (schema["type"], schema["minItems"], "maxItems" in schema) == ("array", 1, False)
    written = [{"name": "add", "arguments": {"a": 1, "b": 2}}, {"name": "Search", "arguments": {}}]
    error = several.parse_outcome(None, Outcome(json.dumps(written), "stop")).error
    assert error is not None
    assert "'kind' is a required property" in error.message
    assert several.parse_outcome(None, Outcome(json.dumps(written[:1]), "stop")).value["content"] is None


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"tools": [add]}, OptionError, "tool_parser"),
        ({"tools": [add], "tool_choice": "ad"}, SchemaError, "no tool 'ad'. Did you mean 'add'"),
        ({"tools": [add], "return_format": int}, OptionError, "exclude each other"),
        ({"tools": [add], "tool_parser": "hermes", "apply_chat_template": False}, OptionError, "chat template"),
        ({"tool_choice": "required"}, OptionError, "empty"),
        ({"parallel_tool_calls": False}, OptionError, "empty"),
        (
            {"tools": [{"function": {"name": "f", "parameters": {"$ref": "#/$defs/Missing"}}}]},
            SchemaError,
            "refer to '#/.defs/Missing', which is not there",
        ),
        ({"tools": [add, add], "tool_parser": "hermes"}, SchemaError, "different names"),
        ({"tools": [42], "tool_parser": "hermes"}, SchemaError, "is no tool"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "objekt"}}}]},
            SchemaError,
            "the parameters of f are no JSON Schema",
        ),
    ],
)
def test_what_is_refused_before_anything_is_loaded(options: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        prompt(col("q"), gpus=0, **options)
