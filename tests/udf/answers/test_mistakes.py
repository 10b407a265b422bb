"""Return formats that are nearly right."""

from __future__ import annotations

import dataclasses
import enum
import re
import sys
from typing import Any

import pytest
from daft import col
from pydantic import BaseModel

from daft_vllm import prompt
from daft_vllm.errors import SchemaError


class City(BaseModel):
    name: str


@dataclasses.dataclass
class Point:
    x: int


class Colour(enum.Enum):
    RED = "red"


@pytest.mark.parametrize("given", [City(name="Rome"), Point(1), Colour.RED])
def test_an_instance(given: Any) -> None:
    name = type(given).__name__
    with pytest.raises(SchemaError, match=rf"an instance of {name}: pass the class, return_format={name}\."):
        prompt(col("q"), given)


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="pydantic.v1 ends with Python 3.13")
def test_a_model_of_pydantic_v1() -> None:
    from pydantic.v1 import BaseModel as Old

    class Town(Old):
        name: str

    with pytest.raises(SchemaError, match=r"Town is a model of pydantic v1: derive Town from pydantic\.BaseModel"):
        prompt(col("q"), Town)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"a": 1}, 'without a keyword of JSON Schema, which allows everything. Write for example {"type": "object"'),
        ({"name": {"type": "string"}}, '"properties": {"name": {"type": "string"}}, "required": ["name"]}'),
        ({"name": "string"}, "without a keyword of JSON Schema"),
        ({"name": str}, "without a keyword of JSON Schema"),
        (
            {"type": "object", "propertes": {"a": {"type": "integer"}}},
            "'propertes' is no keyword of",
        ),
        ({"type": "objct"}, "not a JSON Schema, at $.type: 'objct' is none of array, boolean,"),
        ({"type": "str"}, "Did you mean 'string'?"),
        ({"type": "json_schema", "json_schema": {"schema": {}}}, "OpenAI's response_format: pass the schema in it"),
        ({"type": "json_object"}, "return_format=daft_vllm.Json"),
        ({"type": "function", "function": {"name": "f"}}, "pass it in tools="),
        (re.compile("a+"), r"pass return_format=Regex('a+')."),
        (col("x"), "pass PerRow(column"),
        ({"a", "b"}, "pass a list of strings"),
        ('{"type": "object"}', "return_format=json.loads(text)"),
    ],
)
def test_what_is_nearly_a_format(given: Any, message: str) -> None:
    with pytest.raises(SchemaError) as caught:
        prompt(col("q"), given)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "schema",
    [{}, {"title": "anything"}, {"type": "object"}, {"enum": [1], "x-other": 2}, {"type": "integer", "tag": 1}],
)
def test_schemas_with_few_or_unknown_keywords_stay_formats(schema: Any) -> None:
    prompt(col("q"), schema)


def _nested(depth: int) -> dict[str, Any]:
    return {"type": "array", "items": _nested(depth - 1) if depth else {"type": "integer"}, "minItems": 1}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"type": "string", "pattern": r"^\p{L}+$"}, r"not a regular expression in Python's syntax: bad escape"),
        (_nested(150), "nested too deeply"),
        (["yes", "\ud83d"], "half of a surrogate pair"),
        ({"type": "object", "properties": {"\ud83d": {}}}, "half of a surrogate pair"),
    ],
)
def test_schemas_that_are_nearly_right(given: Any, says: str) -> None:
    with pytest.raises(SchemaError, match=says):
        prompt(col("q"), given)
