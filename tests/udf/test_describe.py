"""What a model is told of a format."""

from __future__ import annotations

import datetime
import json
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from daft_vllm.udf.describe import describe
from daft_vllm.udf.formats import Grammar, Json, Regex
from daft_vllm.udf.return_format import ReturnFormat


class Line(BaseModel):
    sku: Annotated[str, Field(max_length=12)]
    amount: Annotated[int, Field(ge=0, le=99, description="How many were bought.")]


class Order(BaseModel):
    """An order as the customer sees it."""

    kind: Literal["new", "return"]
    day: datetime.date
    lines: Annotated[list[Line], Field(max_length=3)]
    note: str | None = None


def told(given: object) -> str | None:
    constraint = ReturnFormat.of(given).constraint
    assert constraint is not None
    return describe(constraint)


def test_the_shape_comes_first_and_then_what_is_to_be_known() -> None:
    assert told(Order) == "\n".join(
        [
            'Answer with JSON: {"kind": ..., "day": ..., "lines": [{"sku": ..., "amount": ...}, ...], "note": ...}',
            "The answer: An order as the customer sees it.",
            "The answer may leave out note.",
            "kind is one of new, return.",
            "day is a date such as 2024-05-31.",
            "lines has at most 3 entries.",
            "lines[].sku has at most 12 characters.",
            "lines[].amount is an integer from 0 to 99: How many were bought.",
            "note may be null.",
        ]
    )


def test_formats_that_are_no_objects() -> None:
    assert told(["yes", "no"]) == "Answer with one of: yes, no."
    assert told(Regex("a+")) == "Answer with text that matches the regular expression a+"
    assert told(Grammar('root ::= "a"')) is None
    assert told(Json()) == "Answer with JSON."
    assert told(int) == "Answer with JSON.\nThe answer is an integer."


def test_a_format_of_many_words_is_told_less_deeply() -> None:
    fields = {f"field_{i}": {"enum": [f"value {j}" for j in range(40)]} for i in range(40)}
    deep = {"type": "object", "properties": {"outer": {"type": "object", "properties": {"in": {"properties": fields}}}}}
    deep["properties"]["outer"]["properties"]["in"]["type"] = "object"
    text = told(deep)
    assert text is not None
    assert len(text) < 6000
    assert '"outer"' in text
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": ["next"]}
    assert json.dumps("next") in (told({"$ref": "#/$defs/node", "$defs": {"node": node}}) or "")
