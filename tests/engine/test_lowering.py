"""From a JSON Schema to one that xgrammar enforces to the letter: nothing that the schema refuses is accepted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from daft_vllm.engine.lowering import lower
from daft_vllm.engine.patterns import pattern_within
from daft_vllm.errors import SchemaError

xgrammar = pytest.importorskip("xgrammar")

PERSON = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "integer"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
            "required": ["value"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}


def accepts(schema: Any, value: Any) -> bool:
    """Whether the grammar of the lowered schema accepts ``value``."""
    from xgrammar.testing import _is_grammar_accept_string

    lowered = lower(schema)
    assert lowered.findings == []
    assert lowered.schema is not None
    grammar = xgrammar.Grammar.from_json_schema(json.dumps(lowered.schema), any_whitespace=True)
    accepted: bool = _is_grammar_accept_string(grammar, json.dumps(value))
    return accepted


# A schema of which xgrammar by itself drops a part, values that satisfy it, and values that don't.
CASES: list[tuple[Any, list[Any], list[Any]]] = [
    ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer"}}, "minimum": 5}, [5, 9], [4, "x"]),
    ({"enum": [1, 2, "x", None], "type": ["integer", "null"], "maximum": 1}, [1, None], [2, "x"]),
    ({"const": "a", "maxLength": 3}, ["a"], ["b"]),
    ({"allOf": [{"type": "string"}, {"enum": ["yes", "no", 3]}]}, ["yes", "no"], ["maybe", 3, {}]),
    (
        {"allOf": [PERSON, {"properties": {"age": {"type": "integer"}}, "required": ["age"]}]},
        [{"name": "Ada", "age": 3}],
        [{"name": "Ada"}, {"age": 3}, {"name": "Ada", "age": "3"}],
    ),
    (
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "additionalProperties": False,
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        },
        [{"a": 1}, {"b": 1}, {"a": 1, "b": 1}],
        [{}, {"a": "x"}, {"c": 1}],
    ),
    (
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "additionalProperties": False,
            "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
        },
        [{"a": 1}, {"b": 1}],
        [{}, {"a": 1, "b": 1}],
    ),
    ({"type": "object", "required": ["a"]}, [{"a": 1}, {"a": [2]}], [{}, {"b": 1}]),
    (
        {
            "type": "object",
            "properties": {"a": {}, "b": {}},
            "additionalProperties": False,
            "dependentRequired": {"a": ["b"]},
        },
        [{}, {"b": 1}, {"a": 1, "b": 1}],
        [{"a": 1}],
    ),
    (
        {"type": "object", "properties": {"a": False, "b": {}}},
        [{"b": 1}, {}],
        [{"a": 1}, {"b": 1, "a": 1}],
    ),
    ({"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 20}, [0, 5, 20], [3, 25]),
    ({"type": "number", "multipleOf": 1}, [3], [3.5]),
    ({"type": "integer", "minimum": 0, "exclusiveMinimum": True}, [1], [0]),
    ({"type": "string", "pattern": "^[a-z]*$", "minLength": 2, "maxLength": 3}, ["ab", "abc"], ["a", "abcd", "AB"]),
    ({"type": "array", "items": [{"type": "integer"}], "additionalItems": False}, [[1]], [["x"], [1, 2]]),
    ({"type": "array", "prefixItems": [{"type": "integer"}, False]}, [[1]], [[1, 2]]),
    ({"properties": {"a": {"type": "integer"}}, "required": ["a"]}, [{"a": 1}], [{"a": "x"}, {}]),
    (
        {"type": "object", "patternProperties": {"^x-": {"type": "integer"}}, "properties": {"a": {"type": "string"}}},
        [{"a": "b"}],
        [{"x-1": "no"}, {"a": 1}],
    ),
    ({"type": "object", "propertyNames": {"enum": ["a", "b"]}}, [{"a": 1}, {"a": 1, "b": 2}, {}], [{"c": 1}]),
    (TREE, [{"value": 1, "children": [{"value": 2}]}], [{"value": 1, "children": [{"children": []}]}, {}]),
    ({"anyOf": [TREE["$defs"]["node"] | {"properties": {"value": {}}}, {"type": "null"}]}, [None, {"value": 1}], [1]),
]


@pytest.mark.parametrize(("schema", "valid", "invalid"), CASES)
def test_a_lowered_schema_says_all_that_the_schema_says(schema: Any, valid: list[Any], invalid: list[Any]) -> None:
    for value in valid:
        assert accepts(schema, value), value
    for value in invalid:
        assert not accepts(schema, value), value


@pytest.mark.parametrize(
    ("schema", "pointer", "keyword"),
    [
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "", "uniqueItems"),
        ({"type": "array", "contains": {"type": "integer"}}, "", "contains"),
        (
            {"type": "object", "properties": {"a/b": {"type": "number", "multipleOf": 0.01}}},
            "/properties/a~1b",
            "multipleOf",
        ),
        ({"type": "object", "properties": {"a": {"not": {"type": "null"}}}}, "/properties/a", "not"),
        ({"type": "object", "if": {"required": ["a"]}, "then": {"required": ["b"]}}, "", "if"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "", "oneOf"),
        ({"type": "string", "pattern": "^a+b+$", "maxLength": 5}, "", "pattern"),
        ({"type": "string", "format": "iri"}, "", "format"),
        ({"allOf": [{"type": "string", "pattern": "a"}, {"pattern": "b"}]}, "", "pattern"),
    ],
)
def test_what_no_grammar_says_is_found_with_its_place(schema: Any, pointer: str, keyword: str) -> None:
    (finding,) = lower(schema).findings
    assert (finding.pointer, finding.keyword) == (pointer, keyword)
    assert keyword in str(finding)


@pytest.mark.parametrize(
    "schema",
    [
        False,
        {"type": "integer", "minimum": 3, "maximum": 2},
        {"allOf": [{"type": "string"}, {"type": "integer"}]},
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
        {"enum": [1, 2], "type": "string"},
    ],
)
def test_a_schema_that_nothing_satisfies_has_no_lowered_one(schema: Any) -> None:
    assert lower(schema).schema is None


@pytest.mark.parametrize("schema", [{"$ref": "#/$defs/x"}, {"$ref": "other.json"}, {"allOf": [{"$ref": "#"}]}])
def test_references_that_lead_nowhere_are_errors(schema: Any) -> None:
    with pytest.raises(SchemaError, match="refers to"):
        lower(schema)


def test_a_pattern_is_held_to_a_length() -> None:
    assert pattern_within("^[a-z]+$", 0, 12) == "^[a-z]{1,12}$"
    assert pattern_within(r"^\d{3}$", 2, 5) == r"^\d{3}$"
    assert pattern_within("^a+b$", 0, 5) is None
    assert pattern_within("^[a-z]*$", 3, None) == "^[a-z]{3,}$"
