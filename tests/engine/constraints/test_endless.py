"""A format of which no answer ends is refused; a part of which no value ends is left out."""

from __future__ import annotations

import json
from typing import Annotated, Any

import daft
import pytest
from pydantic import BaseModel, Field

from daft_vllm import Constraint, Grammar, prompt
from daft_vllm.engine.constraints.enforcement import enforcement_of
from daft_vllm.engine.constraints.lowering import lower
from daft_vllm.errors import SchemaError


class Endless(BaseModel):
    items: Annotated[list[Endless], Field(min_length=1)]


class Ping(BaseModel):
    pong: Pong


class Pong(BaseModel):
    ping: Ping


class Holder(BaseModel):
    names: list[str]
    tree: Endless


class Keys(BaseModel):
    inner: Annotated[dict[str, Keys], Field(min_length=2)]


class Pair(BaseModel):
    both: tuple[int, Pair]


class Ending(BaseModel):
    inner: Ending | None
    others: list[Ending]


class Optional(BaseModel):
    one: Endless | int
    none: Endless | None = None
    some: list[Endless]
    keyed: dict[str, Endless]
    pair: tuple[int, Endless | None]


CIRCLE = {
    "$ref": "#/$defs/a",
    "$defs": {
        "a": {"anyOf": [{"$ref": "#/$defs/b"}]},
        "b": {"type": "array", "prefixItems": [{"$ref": "#/$defs/a"}], "minItems": 1},
    },
}


@pytest.mark.parametrize(
    "given",
    [
        *(Endless, Ping, Holder, Keys, Pair, list[Ping] | Pong, Annotated[list[Ping], Field(min_length=1)]),
        CIRCLE,
    ],
)
def test_a_schema_without_an_end_is_refused(given: Any) -> None:
    if given == list[Ping] | Pong:  # the empty list is one
        prompt(daft.col("q"), given, gpus=0)
        return
    with pytest.raises(SchemaError, match="no value of the schema ends"):
        prompt(daft.col("q"), given, gpus=0)


def test_parts_without_an_end_are_left_out() -> None:
    lowered = lower(Optional.model_json_schema()).schema
    assert lowered is not None
    assert "$defs" not in lowered
    properties = lowered["properties"]
    assert [option["type"] for option in properties["one"]["anyOf"]] == ["integer"]
    assert properties["none"] == {"anyOf": [{"type": "null"}]}
    assert properties["some"] == {"enum": [[]]}
    assert properties["keyed"] == {"enum": [{}]}
    assert properties["pair"]["prefixItems"][1] == {"anyOf": [{"type": "null"}]}
    ending = json.dumps(lower(Ending.model_json_schema()).schema)
    assert ending.count('"others": {"type": "array", "items": {"$ref"') == 2


@pytest.mark.parametrize(
    ("grammar", "rule"),
    [
        ('root ::= "a" root', "root"),
        ('root ::= "a" b | "q"\nb ::= "(" b ")" | c\nc ::= "z" c', "b"),
        ('root ::= "root" ("b" | x{2,3})\nx ::= [a-z]* x', "x"),
        ('start: "a" start', "root"),
    ],
)
@pytest.mark.parametrize("backend", ["xgrammar", "guidance"])
def test_a_grammar_without_an_end_is_refused(grammar: str, rule: str, backend: Any, smollm2: str) -> None:
    """llguidance notices some by itself: it expands tokens that are the only ones, without end."""
    says = f"no text of the rule '{rule}' ends" + ("|can't write a random answer" if backend == "guidance" else "")
    with pytest.raises(SchemaError, match=says):
        prompt(daft.col("q"), Grammar(grammar), model=smollm2, backend=backend, gpus=0)


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= ("a" root)* "b" (root | "c")',
        'root ::= "b" root{0,2}',
        'root ::= "root" "[a\\"" root?',
        'root ::= "(" root ")" | [^"\\]]+',
        'start: "a" start | NUM\nNUM: /[0-9]+/',
    ],
)
def test_a_grammar_that_ends_is_taken(grammar: str) -> None:
    assert enforcement_of(Constraint(grammar=grammar)).kind == "grammar"
