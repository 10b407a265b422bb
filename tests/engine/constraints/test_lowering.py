"""A lowered JSON Schema is enforced exactly: its grammar accepts nothing that the original schema refuses."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from benchmarks.guided.grammars import acceptor, writer
from daft_vllm.engine import Constraint
from daft_vllm.engine.constraints.enforcement import enforcement_of
from daft_vllm.engine.constraints.formats import ASSERTED
from daft_vllm.engine.constraints.libraries.base import Enforcement
from daft_vllm.engine.constraints.limits.validator import validator_of
from daft_vllm.engine.constraints.lowering import lower
from daft_vllm.errors import SchemaError

pytest.importorskip("xgrammar")

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


def accepts(schema: Any, value: Any, backend: Any = "auto") -> bool:
    """Whether the grammar that enforces ``schema`` accepts ``value``."""
    one = enforcement_of(Constraint(json_schema=json.dumps(schema), backend=backend))
    assert one.unenforced == ()
    return acceptor(one)(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


# Schemas that xgrammar by itself enforces only in part, values that satisfy them, and values that don't.
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
    (  # one branch describes the key by a pattern, and the other rules out its values by name
        {
            "oneOf": [
                {"patternProperties": {"c": {"properties": {"a": {"type": "integer"}}}}},
                {"not": {"properties": {"c": {"enum": [1, "a", None]}}}},
            ]
        },
        [{}, {"c": {"a": "x"}}],
        [{"c": 2.5}, {"c": True}],
    ),
    (  # a key is ruled out by its name, although a pattern allows it
        {"type": "object", "properties": {"a": {"not": {}}}, "patternProperties": {"^[a-z]$": {}}},
        [{}],
        [{"a": 1}, {"a": ""}],
    ),
    (
        {
            "type": "object",
            "properties": {"A": False},
            "patternProperties": {"^[a-z]$": {"type": "integer"}},
            "additionalProperties": False,
        },
        [{}, {"a": 1}],
        [{"A": 1}, {"a": "x"}],
    ),
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
    ({"type": "object", "properties": {"a": {"not": {"type": "null"}}}}, [{"a": 1}, {"a": []}], [{"a": None}]),
    ({"type": "string", "not": {"enum": ["ab", "a"]}}, ["", "b", "abc", "aa"], ["ab", "a", 1]),
    ({"type": ["string", "null"], "not": {"maxLength": 2}}, ["abc"], ["ab", None]),
    (
        {
            "type": "object",
            "properties": {"kind": {"enum": ["a", "b"]}, "n": {"type": "integer"}},
            "required": ["kind"],
            "if": {"properties": {"kind": {"const": "a"}}},
            "then": {"required": ["n"]},
            "else": {"properties": {"n": False}},
        },
        [{"kind": "a", "n": 1}, {"kind": "b"}],
        [{"kind": "a"}, {"kind": "b", "n": 1}],
    ),
    ({"oneOf": [{"type": "integer", "maximum": 5}, {"type": "integer", "minimum": 3}]}, [2, 6], [4]),
    (
        {
            "oneOf": [
                {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]},
            ]
        },
        [{"a": 1}, {"b": 1}],
        [{}, {"a": 1, "b": 1}],
    ),
    (  # each branch of the oneOf names one key, and the schema beside it names both
        {
            "allOf": [
                {"oneOf": [{"required": ["a"], "properties": {"a": {}}}, {"required": ["b"], "properties": {"b": {}}}]},
                {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
            ]
        },
        [{"a": 1}, {"b": 1}],
        [{"a": 1, "b": 1}, {}],
    ),
    ({"type": "integer", "not": {"not": {"minimum": 3}}}, [3, 4], [2]),
    ({"oneOf": [{"type": "object"}, {"type": "object", "required": ["a"]}]}, [{}], [{"a": 1}]),
    ({"type": ["string", "null"], "not": {"oneOf": [{"type": "null"}, {"enum": ["a"]}]}}, ["b"], [None, "a"]),
    ({"type": "string", "maxLength": 4}, ["", "abcd", '"', "a\nb", "é😀"], ["abcde", 1]),
    ({"type": "string", "pattern": 'say "', "maxLength": 8}, ['say "hi"'], ["say hi", 'say "hi" to']),
    ({"type": "string", "pattern": "^a|b$"}, ["a", "ax", "xb"], ["x", "xa"]),
    ({"type": "string", "pattern": "foo"}, ["foo", "a foo b"], ["fo"]),
    ({"type": "string", "pattern": "^[a-z][a-z0-9-]*$", "maxLength": 5}, ["a", "ab-1"], ["", "abcdef", "1a"]),
    ({"type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": 9}, [0.25, 8.75], [0.3, 10.0]),
    ({"type": "number", "multipleOf": 1.5}, [4.5, 1.5e10], [0.3, 8.625e50]),  # a double rounds large numbers
    ({"type": "string", "format": "date"}, ["2024-02-29", "1999-12-31"], ["2023-02-29", "2024-02-30", "2024-13-01"]),
    ({"type": "string", "format": "email"}, ["a.b@c.org"], ["a@b", "@c.org", "a b@c.org"]),
    ({"type": "array", "prefixItems": [{}, {}], "items": False, "minItems": 2}, [[1, "a"]], [[1], [1, 2, 3]]),
    (
        {"patternProperties": {"a": {"type": "integer"}, "b": {"maximum": 5}}, "type": "object"},
        [{"a": 3}],
        [{"ab": 9}, {"a": "x"}],
    ),
    (
        {
            "allOf": [{"properties": {"a": {}}}],
            "properties": {"b": {}},
            "unevaluatedProperties": False,
            "type": "object",
        },
        [{"b": 1}, {}],
        [{"c": 1}],
    ),
    ({"allOf": [{"properties": {"a": {}}, "type": "object"}, {"unevaluatedProperties": False}]}, [{}], [{"a": 1}]),
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
        ({"type": "object", "properties": {"a": {"type": "string", "not": {"pattern": "x"}}}}, "/properties/a", "not"),
        ({"type": "string", "if": {"pattern": "x"}, "then": {"minLength": 3}}, "", "if"),
        # If a negation leaves something out, it can't be negated again.
        ({"type": "object", "not": {"not": {"required": ["a"], "properties": {"a": {"pattern": "x"}}}}}, "", "not"),
        ({"oneOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "array"}]}, "", "oneOf"),
        # An object of two keys may satisfy both branches, although the second names a key only to rule it out.
        ({"oneOf": [{"minProperties": 2}, {"not": {"required": ["c"]}}]}, "", "oneOf"),
        # The negation of a branch names keys, but it doesn't evaluate them.
        (
            {"oneOf": [{"maxLength": 2}, {"dependentRequired": {"a": ["c"]}}], "unevaluatedProperties": False},
            "",
            "unevaluatedProperties",
        ),
        (
            {"anyOf": [{"if": {"properties": {"a": {"const": 1}}}, "then": {}}], "unevaluatedProperties": False},
            "",
            "unevaluatedProperties",
        ),
        ({"type": "string", "pattern": "(?=a)b"}, "", "pattern"),
        ({"type": "string", "pattern": "(a)\\1"}, "", "pattern"),
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
        {"enum": ["x", "2020-02-30"], "type": "string", "format": "date"},
    ],
)
def test_a_schema_that_nothing_satisfies_has_no_lowered_one(schema: Any) -> None:
    assert lower(schema).schema is None


@pytest.mark.parametrize("schema", [{"$ref": "#/$defs/x"}, {"$ref": "other.json"}, {"allOf": [{"$ref": "#"}]}])
def test_references_that_lead_nowhere_are_errors(schema: Any) -> None:
    with pytest.raises(SchemaError, match="refers to"):
        lower(schema)


def test_auto_takes_the_library_that_leaves_nothing_out() -> None:
    def backend(schema: Any, **options: Any) -> str:
        return enforcement_of(Constraint(json_schema=json.dumps(schema), **options)).backend

    assert backend({"type": "string"}) == "xgrammar"
    assert backend({"type": "string", "maxLength": 9}) == "guidance"  # with a length, xgrammar allows no quote
    assert backend({"type": "string", "maxLength": 9}, backend="xgrammar") == "xgrammar"
    assert backend({"type": "integer", "multipleOf": 7}) == "guidance"
    with pytest.raises(SchemaError, match="/: multipleOf: "):
        backend({"type": "integer", "multipleOf": 7}, backend="xgrammar")
    unique = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    with pytest.raises(SchemaError, match='enforce="validate"'):
        backend(unique)
    one = enforcement_of(Constraint(json_schema=json.dumps(unique), enforce="validate"))
    assert [finding.keyword for finding in one.unenforced] == ["uniqueItems"]


@pytest.mark.parametrize("backend", ["xgrammar", "guidance"])
def test_times_and_dates_are_ones_that_python_has(backend: str) -> None:
    for form, valid, invalid in (
        ("time", ["23:59:59Z", "00:00:00.5+02:00"], ["23:59:60Z", "24:00:00Z", "10:00:00"]),
        ("date", ["2024-02-29"], ["2023-02-29", "0000-01-01"]),
        ("date-time", ["2024-02-29T23:59:59Z"], ["2024-02-30T00:00:00Z", "2024-02-29T00:00:60Z"]),
    ):
        schema = {"type": "string", "format": form}
        assert [text for text in valid + invalid if accepts(schema, text, backend)] == valid


@pytest.mark.parametrize("pattern", ["[A-Z]{2}-\\d+", "(yes|no)", "[^\\d]+", "a.b", "x{0,300}"])
def test_a_regular_expression_means_what_it_means_in_python(pattern: str) -> None:
    import re

    accepts = acceptor(enforcement_of(Constraint(regex=pattern)))
    for text in ("AB-12", "yes", "no", "maybe", "a-b", 'a"b', "a\nb", "x" * 300, "x" * 301, "5", "Ü"):
        assert not accepts(text) or re.fullmatch(pattern, text), text
    assert any(accepts(text) for text in ("AB-12", "yes", "abc", "a-b", "xx"))


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        (Constraint(regex="(?<=a)b"), "assert"),
        (Constraint(grammar="root ::= nowhere"), "can't build"),
        (Constraint(grammar="start: ("), "can't build"),
        (Constraint(grammar=r"root ::= [^\x00-\U0010FFFF]"), "neither go on nor end"),
        (Constraint(regex=r"a\ud83d"), "half of a surrogate pair"),
        (
            Constraint(json_schema='{"type": "string", "pattern": "^[\\\\ud800-\\\\udbff]$"}'),
            "class of the pattern is empty",
        ),
        (Constraint(json_schema='{"items":' * 900 + "true" + "}" * 900), "nested too deeply"),
    ],
)
def test_a_constraint_that_cannot_be_built_is_refused(constraint: Constraint, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        enforcement_of(constraint)


@pytest.mark.parametrize("backend", ["xgrammar", "guidance"])
def test_anchors_that_branches_share(backend: Any) -> None:
    schema = {"type": "string", "pattern": "^in:a$|^in:b$|^in:c"}
    assert [accepts(schema, text, backend) for text in ("in:a", "in:b", "in:cx")] == [True] * 3
    assert [accepts(schema, text, backend) for text in ("in:ax", "in:d", "xin:c", "")] == [False] * 4


def test_llguidance_still_lets_a_whole_bound_in() -> None:
    """If this fails, llguidance is fixed, and ``Emitter._number`` no longer has to refuse such bounds."""
    spec = json.dumps({"type": "number", "exclusiveMinimum": 2, "exclusiveMaximum": 2.5})
    assert acceptor(Enforcement("guidance", "json", spec))("2")
    with pytest.raises(SchemaError, match="exclusiveMinimum: llguidance includes a whole bound"):
        enforcement_of(Constraint(json_schema=spec, backend="guidance"))
    assert not accepts(json.loads(spec), 2)
    assert accepts(json.loads(spec), 2.25)


def test_llguidance_still_lets_a_quote_in_beside_control_characters() -> None:
    """If this fails, llguidance is fixed, and ``rust_pattern`` may allow control characters."""
    loose = Enforcement("guidance", "json", json.dumps({"type": "string", "pattern": '^a[^ "]$'}))
    assert acceptor(loose)(json.dumps('a"'))
    assert not accepts({"type": "string", "pattern": '^a[^ "]$'}, 'a"', "guidance")


@pytest.mark.parametrize("backend", ["xgrammar", "guidance"])
def test_random_texts_of_every_format_and_of_patterns_are_valid(backend: Any) -> None:
    schemas: list[Any] = [{"type": "string", "format": name} for name in sorted(ASSERTED)]
    # In Rust other characters are whitespace and digits than in Python. A surrogate's three bytes are three characters.
    schemas += [{"type": "string", "pattern": p} for p in (r"^[^\s]{1,9}x", r"^\d+\w?$", r"a.c$", r"^(\S|b)+$")]
    schemas += [{"type": "string", "maxLength": 20}, {"type": "object", "patternProperties": {r"^\S$": {}}}]
    written = 0
    for schema in schemas:
        try:
            one = enforcement_of(Constraint(json_schema=json.dumps(schema), backend=backend))
        except SchemaError:
            continue
        check, write = validator_of(schema), writer(one, random.Random(7))
        for text in (write() for _ in range(100)):
            if text is not None:
                assert check.is_valid(json.loads(text)), (schema, text)
                written += 1
    assert written > 1000


def test_a_pattern_that_cannot_be_written_beside_a_length() -> None:
    """Neither part can be enforced: both are findings, and the schema is left to validation."""
    schema = {"type": "string", "pattern": r"\bfoo\b", "maxLength": 5}
    with pytest.raises(SchemaError, match="pattern"):
        enforcement_of(Constraint(json_schema=json.dumps(schema), backend="xgrammar"))
    one = enforcement_of(Constraint(json_schema=json.dumps(schema), backend="xgrammar", enforce="validate"))
    assert [finding.keyword for finding in one.unenforced] == ["pattern"]
