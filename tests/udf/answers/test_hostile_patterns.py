"""A pattern with which the time doubles for each character of an answer costs one row its value, and no more."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, ConfigDict, Field

from daft_vllm import Outcome, Regex
from daft_vllm.engine.constraints.limits import killable
from daft_vllm.engine.requests.toolbox import ToolAnswer, ToolCall
from daft_vllm.udf.answers.formats import Tools
from daft_vllm.udf.answers.return_format import ReturnFormat
from daft_vllm.udf.answers.tools import CallFormat

pytestmark = pytest.mark.timeout(120)

LONG = "a" * 60 + "!"


class ByPython(BaseModel):
    model_config = ConfigDict(regex_engine="python-re")
    text: Annotated[str, Field(pattern="^(a+)+$")]


class Compiled(BaseModel):
    text: Annotated[str, Field(pattern=re.compile("^(a+)+(?!b)$"))]


class Outer(BaseModel):
    inner: list[ByPython]


class ByRust(BaseModel):
    text: Annotated[str, Field(pattern="^(a+)+$")]


@pytest.mark.parametrize(
    ("form", "wrap"),
    [
        (Regex("(a+)+"), str),
        (Regex("(a|aa)+"), str),
        ({"type": "string", "pattern": "^(a+)+$"}, json.dumps),
        ({"type": "string", "pattern": "^(a|a)*$", "maxLength": 5000}, json.dumps),
        ({"type": "string", "pattern": "(?:^(a+)+$)|b", "format": "regex"}, json.dumps),
        (
            {"type": "object", "patternProperties": {"^(a+)+$": {"type": "integer"}}, "additionalProperties": False},
            lambda text: json.dumps({text: 1}),
        ),
        ({"type": "object", "propertyNames": {"pattern": "^(a+)+$"}}, lambda text: json.dumps({text: 1})),
        (ByRust, lambda text: json.dumps({"text": text})),
        (ByPython, lambda text: json.dumps({"text": text})),
        (Compiled, lambda text: json.dumps({"text": text})),
        (Outer, lambda text: json.dumps({"inner": [{"text": text}]})),
        (dict[Annotated[str, Field(pattern="^(a+)+$")], int], lambda text: json.dumps({text: 1})),
        (
            {
                "type": "object",
                "patternProperties": {"^(a+)+$": {"type": "integer"}},
                "unevaluatedProperties": False,
            },
            lambda text: json.dumps({text: 1}),
        ),
    ],
)
def test_an_answer_is_an_error_in_time(form: Any, wrap: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(killable, "SECONDS", 1.5)
    made = ReturnFormat.of(form, enforce="validate")
    good = [made.parse(wrap("a" * (1 + i % 5))) for i in range(25)]
    hostile = made.parse(wrap(LONG))
    more = [made.parse(wrap("a" * (1 + i % 5))) for i in range(25)]
    assert hostile.error is not None
    assert hostile.error.code == "invalid_output"
    assert [one.error for one in good + more] == [None] * 50
    assert good[0].value is not None


def test_arguments_of_tools_are_checked_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(killable, "SECONDS", 1.5)
    for pattern in ("^(a+)+$", "^(a+)+(?!b)$"):
        parameters = {"type": "object", "properties": {"q": {"type": "string", "pattern": pattern}}}
        form = CallFormat.of_tools(
            Tools([{"name": "find", "parameters": parameters}]), "auto", parallel=True, enforce="strict", backend="auto"
        )

        def call(text: str, form: CallFormat = form) -> Any:
            answer = ToolAnswer(None, (ToolCall("find", json.dumps({"q": text})),))
            return form.parse_outcome(None, Outcome(text="", finish_reason="stop", tool_answer=answer)).error

        assert call("aaa") is None
        assert call(LONG).code == "invalid_output"
        assert call("aaa") is None
