"""What a model is told of a format."""

from __future__ import annotations

import datetime
import json
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from daft_vllm.udf.answers.describe import describe
from daft_vllm.udf.answers.formats import Grammar, Json, Regex
from daft_vllm.udf.answers.return_format import ReturnFormat


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


def test_each_part_is_told_from_the_outside_in() -> None:
    assert told(Order) == "\n".join(
        [
            'Answer with a JSON object with the keys "kind", "day", "lines", "note" (optional).',
            "The answer: An order as the customer sees it.",
            "kind is one of new, return.",
            "day is a date such as 2024-05-31.",
            "lines is a list of at most 3 entries.",
            'lines[] is an object with the keys "sku", "amount".',
            "lines[].sku is text of at most 12 characters.",
            "lines[].amount is an integer from 0 to 99: How many were bought.",
            "note may be null.",
        ]
    )


class Circle(BaseModel):
    kind: Literal["circle"]
    radius: float


class Square(BaseModel):
    """A square."""

    kind: Literal["square"]
    side: float


class Tree(BaseModel):
    children: list[Tree]
    tags: list[str]
    shape: Annotated[Circle | Square, Field(discriminator="kind", description="What it looks like.")]
    scores: dict[str, float]
    pair: tuple[int, bool]
    size: Annotated[int, Field(gt=0, ge=1)] | str | None


def test_trees_choices_maps_and_tuples_are_told_in_words() -> None:
    assert told(Tree) == "\n".join(
        [
            'Answer with a JSON object with the keys "children", "tags", "shape", "scores", "pair", "size".',
            "children is a list.",
            "children[] is like the answer.",
            "tags is a list of texts.",
            'shape is an object with the keys "kind" (always circle), "radius" or an object with the keys "kind" '
            '(always square), "side" (A square): What it looks like.',
            "shape.radius is a number.",
            "shape.side is a number.",
            "scores is an object with keys of your choice.",
            "scores.* is a number.",
            "pair is a list of 2 entries.",
            "pair[0] is an integer.",
            "pair[1] is true or false.",
            "size is an integer of at least 1 or text.",
            "size may be null.",
        ]
    )


def test_formats_that_are_no_objects() -> None:
    assert told(["yes", "no"]) == "Answer with one of: yes, no."
    assert told(Regex("a+")) == "Answer with text that matches the regular expression a+"
    assert told(Grammar('root ::= "a"')) is None
    assert told(Json()) == "Answer with JSON."
    assert told(int) == "Answer with JSON: an integer."
    assert told(list[int]) == "Answer with a JSON list of integers."


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
