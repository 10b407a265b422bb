"""A schema that costs too much is refused when ``prompt()`` is called, with the place and the limit."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable
from dataclasses import make_dataclass
from typing import Any, TypedDict

import daft
import pytest
from pydantic import create_model

from daft_vllm import Grammar, Regex, Tools, prompt
from daft_vllm.engine.constraints.constraint import Constraint
from daft_vllm.engine.constraints.enforcement import enforcement_of
from daft_vllm.engine.constraints.shortest import shortest_answer
from daft_vllm.errors import SchemaError
from daft_vllm.udf.answers.describe import describe

pytestmark = pytest.mark.timeout(120)


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}"}


def _chain(make: Callable[[dict[str, Any]], Any], length: int = 30) -> dict[str, Any]:
    """Return a schema of definitions, each made from a reference to the next."""
    definitions = {f"d{i}": make(_ref(f"d{i + 1}")) for i in range(length)}
    return {**make(_ref("d0")), "$defs": {**definitions, f"d{length}": {"type": "integer"}}}


def _object(*parts: Any) -> dict[str, Any]:
    names = [f"p{i}" for i in range(len(parts))]
    return {"type": "object", "properties": dict(zip(names, parts, strict=True)), "required": names}


def _nested(levels: int, keyword: str = "properties") -> Any:
    def around(inner: Any, _: int) -> Any:
        return {"type": "object", "properties": {"a": inner}} if keyword == "properties" else {keyword: inner}

    return functools.reduce(around, range(levels), {"type": "integer"})


DOUBLING: dict[str, Any] = {
    "properties": _chain(lambda one: _object(one, one)),
    "anyOf": _chain(lambda one: {"anyOf": [one, one]}),
    "allOf": _chain(lambda one: {"allOf": [one, one]}),
    "oneOf": _chain(lambda one: {"oneOf": [one, {"type": "array", "items": one}]}),
    "not": _chain(lambda one: {"not": {"anyOf": [one, {"not": one}]}}),
    "if": _chain(lambda one: {"if": one, "then": one, "else": one}),
    "dependentSchemas": _chain(lambda one: {"dependentSchemas": {"a": one, "b": one}}),
    "prefixItems": _chain(lambda one: {"type": "array", "prefixItems": [one, one], "items": False, "minItems": 2}),
    "JSON text": _chain(
        lambda one: {"type": "object", "properties": {"a": one, "b": one}, "additionalProperties": True}
    ),
    "patternProperties": _chain(lambda one: {"type": "object", "patternProperties": {"^a": one, "^b": one}}),
    "recursion": _chain(lambda one: {"type": "object", "properties": {"a": one, "b": one, "r": _ref("d0")}}),
    "each to each": {
        **_ref("k0"),
        "$defs": {
            f"k{i}": {"type": "object", "properties": {f"p{j}": _ref(f"k{j}") for j in range(12)}} for i in range(12)
        },
    },
}


@pytest.mark.parametrize("name", DOUBLING)
def test_references_that_double_are_refused(name: str) -> None:
    with pytest.raises(SchemaError, match=r"more than [0-9,]+ (parts|steps|characters)") as caught:
        prompt(daft.col("q"), DOUBLING[name], gpus=0)
    assert len(str(caught.value)) < 1500


@pytest.mark.parametrize("enforce", ["strict", "validate"])
@pytest.mark.parametrize(
    ("given", "says"),
    [
        (_nested(190), "/properties/a.*: the schema is nested too deeply: it has more than 64 levels"),
        (_nested(100_000), "nested too deeply: it has more than 64 levels"),
        (_nested(150, "not"), "nested too deeply"),
        (_nested(150, "items"), "nested too deeply"),
        (_chain(lambda one: one, 10_000), r"\$ref: the schema is nested too deeply: it has more than 64 levels"),
        (_chain(lambda one: {"allOf": [one]}, 10_000), r"\$ref: the schema is nested too deeply"),
        (_chain(_object, 5000), r"\$ref: the schema is nested too deeply"),
        ({"type": "string", "pattern": "(" * 3000 + "a" + ")" * 3000}, "/pattern: .* more than 64 groups inside each"),
        ({"type": "object", "patternProperties": {"(?:" * 99 + "a" + ")" * 99: {}}}, "more than 64 groups inside each"),
        ({"type": "string", "pattern": "a|" * 20_000}, "/pattern: .* has 40,000 characters: use at most 20,000"),
        (Regex, "more than 64 groups inside each other"),
        ({"$ref": "#"}, "refers to itself without end, by '#'"),
        ({**_ref("a"), "$defs": {"a": _ref("b"), "b": _ref("a")}}, "refers to itself without end"),
        ({"enum": [f"value {i}" for i in range(1_000_000)]}, "/enum.*: the schema is too large"),
        ({"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(100_000)}}, "is too large"),
        ({"type": "number", "minimum": float("1e400")}, "/minimum: the schema has a number beyond 1e308"),
        ({"type": "integer", "maximum": 10**400}, "/maximum: the schema has a number beyond 1e308"),
        ({"enum": [1, float("nan")]}, "/enum/1: the schema has a number beyond 1e308"),
        ({"allOf": [{"anyOf": [{"minimum": i}, {"maximum": i}]} for i in range(40)]}, "multiply to more than 256"),
    ],
)
def test_what_is_too_large_is_refused(given: Any, says: str, enforce: Any) -> None:
    with pytest.raises(SchemaError, match=says) as caught:
        prompt(
            daft.col("q"), Regex("(" * 3000 + "a" + ")" * 3000) if given is Regex else given, enforce=enforce, gpus=0
        )
    assert len(str(caught.value)) < 1500


def _doubling_types(make: Callable[[str, Any], Any]) -> Any:
    return functools.reduce(lambda inner, i: make(f"D{i}", inner), range(30), int)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (_doubling_types(lambda name, one: create_model(name, a=(one, ...), b=(one, ...))), "more than 20,000 parts"),
        (_doubling_types(lambda name, one: TypedDict(name, {"a": one, "b": one})), "more than"),  # type: ignore[misc]
        (_doubling_types(lambda name, one: make_dataclass(name, [("a", one), ("b", one)])), "more than 20,000 parts"),
        (
            functools.reduce(lambda inner, _: daft.DataType.struct({"a": inner}), range(150), daft.DataType.int64()),
            "deep",
        ),
        ([f"the answer {i}" for i in range(100_000)], "choices of 1,.* characters, more than 1,000,000"),
        (Grammar('root ::= "a"' + ' | "b"' * 200_000), "a grammar of 1,.* characters, more than 1,000,000"),
    ],
)
def test_types_choices_and_grammars_have_limits_too(given: Any, says: str) -> None:
    with pytest.raises(SchemaError, match=says) as caught:
        prompt(daft.col("q"), given, gpus=0)
    assert len(str(caught.value)) < 1500


def test_a_limit_holds_in_any_thread_and_for_parameters_of_tools() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": _nested(190)}}
    says: list[str] = []

    def refuse() -> None:
        for given in (DOUBLING["allOf"], _nested(190), Tools):
            try:
                prompt(daft.col("q"), Tools([tool]) if given is Tools else given, gpus=0)
            except SchemaError as e:
                says.append(str(e))

    thread = threading.Thread(target=refuse)
    thread.start()
    thread.join()
    assert len(says) == 3
    with pytest.raises(SchemaError, match="nested too deeply"):
        prompt(daft.col("q"), tools=[tool], gpus=0)


@pytest.mark.parametrize(
    "given",
    [
        _nested(60),
        _chain(_object, 55),
        {"type": "array", "items": {"type": "integer"}, "maxItems": 10**9},
        {"type": "array", "items": {"type": "integer"}, "minItems": 10**9},
        {"type": "string", "minLength": 10**9},
        {"type": "string", "not": {"const": "x" * 100}},
        {"type": "integer", "multipleOf": 1e-300, "minimum": 1, "maximum": 1},
        {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(200)}},
        {"enum": [f"value {i}" for i in range(2000)]},
        {"type": "object", "patternProperties": {"^(a+)+$": {"type": "integer"}}, "properties": {"a" * 60 + "!": {}}},
    ],
)
def test_what_is_large_but_possible_is_taken(given: Any) -> None:
    prompt(daft.col("q"), given, gpus=0)


def test_the_shortest_answer_is_found_without_trying_all() -> None:
    """Through references, there are six ways on from each level, for as many levels as one likes."""
    one = {"$ref": "#/$defs/e"}
    parts = [
        _object(one, one),
        _object(one, one, one),
        _object({"const": "+"}, one, one),
        {"type": "array", "items": one},
    ]
    schema = {**one, "$defs": {"e": {"anyOf": [{**parts[3], "minItems": 10**9}, *parts[:3], {"const": 12345}]}}}
    assert shortest_answer(Constraint(json_schema=json.dumps(schema))) == "12345"
    most = Constraint(json_schema=json.dumps({"type": "array", "items": {"type": "integer"}, "minItems": 10**9}))
    assert 100_000 < len(shortest_answer(most) or "") <= 200_000
    assert len(shortest_answer(Constraint(json_schema='{"type": "string", "minLength": 1000000000}')) or "") <= 200_002


def test_a_description_of_endless_choices_ends() -> None:
    schema = json.dumps(_chain(lambda one: {"anyOf": [one, one]}))
    assert describe(Constraint(json_schema=schema)) == "Answer with JSON."


def test_a_property_that_a_slow_pattern_may_match_is_refused() -> None:
    schema = {
        "type": "object",
        "patternProperties": {"^(a+)+(?!b)$": {"type": "integer"}},
        "properties": {"a" * 60 + "!": {"type": "string"}},
    }
    with pytest.raises(SchemaError, match="can't be found out: it takes more than"):
        enforcement_of(Constraint(json_schema=json.dumps(schema), enforce="validate"), build=False)
