"""Random schemas and random values: the grammar that enforces a schema accepts nothing that the schema refuses."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.guided.grammars import acceptor, texts_of
from daft_vllm.engine import Constraint
from daft_vllm.engine.constraints.enforcement import enforcement_of
from daft_vllm.engine.constraints.limits.validator import validator_of
from daft_vllm.errors import SchemaError

pytest.importorskip("xgrammar")

KEYS = ("a", "b", "c")
SCHEMAS, VALUES = 250, 25


class Draw:
    """Draws small schemas, and values that have a good chance to satisfy them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def value(self, depth: int = 0) -> Any:
        one = self.random.choice
        kinds: list[Callable[[], Any]] = [
            lambda: None,
            lambda: one([True, False]),
            lambda: one([0, 1, 2, 3, 5, -1, 10]),
            lambda: one(["", "a", "ab", "xyz", "x", "b"]),
            lambda: one([0.5, 2.5]),
        ]
        if depth < 2:
            kinds.append(lambda: [self.value(depth + 1) for _ in range(self.random.randrange(4))])
            kinds.append(lambda: {key: self.value(depth + 1) for key in KEYS if self.random.random() < 0.5})
        return one(kinds)()

    def schema(self, depth: int = 0) -> Any:
        one, some = self.random.choice, self.random.sample
        if depth > 2:
            return one(
                [{"type": "integer"}, {"type": "string"}, {"const": self.value(2)}, True, {"enum": [1, "a", None]}]
            )

        def part() -> Any:
            return self.schema(depth + 1)

        keywords: dict[str, Callable[[], Any]] = {
            "type": lambda: one(["integer", "string", "object", "array", "null", "number", ["string", "null"]]),
            "enum": lambda: [self.value(1) for _ in range(self.random.randrange(1, 4))],
            "minimum": lambda: one([0, 1, 2.5]),
            "maximum": lambda: one([1, 3, 4.5]),
            "maxLength": lambda: self.random.randrange(3),
            "pattern": lambda: one(["^a", "b$", "x", "^[a-z]*$"]),
            "properties": lambda: {key: part() for key in some(KEYS, self.random.randrange(1, 3))},
            "patternProperties": lambda: {one(["^[ab]$", "^[a-z]", "c"]): part()},
            "required": lambda: some(KEYS, self.random.randrange(1, 3)),
            "additionalProperties": lambda: one([False, True, part()]),
            "items": part,
            "prefixItems": lambda: [part()],
            "minItems": lambda: self.random.randrange(3),
            "maxItems": lambda: self.random.randrange(3),
            "allOf": lambda: [part(), part()],
            "anyOf": lambda: [part(), part()],
            "oneOf": lambda: [part(), part()],
            "not": part,
            "if": part,
            "minProperties": lambda: self.random.randrange(3),
            "dependentRequired": lambda: {one(KEYS): [one(KEYS)]},
            "unevaluatedProperties": lambda: False,
        }
        schema = {keyword: keywords[keyword]() for keyword in some(list(keywords), one([1, 1, 2, 2, 3]))}
        if "patternProperties" in schema and self.random.random() < 0.7:
            schema |= {"properties": {one(KEYS): one([False, {"not": {}}, part()])}}
        if "if" in schema:
            schema |= {"then": part(), "else": part()}
        return schema


@pytest.mark.parametrize("backend", ["xgrammar", "guidance"])
@pytest.mark.parametrize("seed", [1, 2])
def test_no_random_schema_accepts_what_it_refuses(seed: int, backend: Any) -> None:
    draw = Draw(seed)
    accepted = refused = unheld = 0
    for _ in range(SCHEMAS):
        schema = draw.schema()
        try:
            one = enforcement_of(Constraint(json_schema=json.dumps(schema), backend=backend))
        except SchemaError:
            unheld += 1
            continue
        check, accepts = validator_of(schema), acceptor(one)
        for value in (draw.value() for _ in range(VALUES)):
            if any(accepts(text) for text in texts_of(value, one)):
                assert check.is_valid(value), (schema, value, one)
                accepted += 1
            else:
                refused += 1
    assert unheld < SCHEMAS / 2
    assert accepted > 300
    assert refused > 300
