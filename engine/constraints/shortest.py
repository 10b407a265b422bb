"""The length of the shortest answer that satisfies a constraint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from daft_vllm.engine.constraints.constraint import Constraint
from daft_vllm.engine.constraints.enforcement import enforcement_of
from daft_vllm.engine.constraints.patterns import shortest_match

_DEEPEST = 40
_FORMATS = {"uuid": "0" * 36, "uri": "a:b", "ipv4": "1.1.1.1", "duration": "P1D"}


def shortest_answer(constraint: Constraint) -> str | None:
    """Return a text as long as the shortest answer to a constraint. None if that isn't known, as for a grammar.

    The text itself may break the constraint: for the digits of a bounded number and the characters of a pattern it may
    have as many others.
    """
    if constraint.choices is not None:
        return min(constraint.choices, key=len)
    if constraint.regex is not None:
        return shortest_match(constraint.regex)
    if constraint.json_schema is None:
        return None
    schema = json.loads(str(enforcement_of(constraint).spec))
    return _Shortest(schema).of(schema, 0)


class _Shortest:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._definitions = root.get("$defs", {})

    def of(self, node: Any, depth: int) -> str | None:
        """Return the shortest JSON text of a lowered schema, None if none was found within ``_DEEPEST`` levels."""
        if depth > _DEEPEST:
            return None
        if not isinstance(node, Mapping) or not node:
            return "0"
        if "$ref" in node:
            return self.of(self._definitions[node["$ref"].rsplit("/", 1)[-1]], depth + 1)
        if "anyOf" in node:
            return min(filter(None, (self.of(option, depth + 1) for option in node["anyOf"])), key=len, default=None)
        if "enum" in node:
            return min((json.dumps(value, separators=(",", ":")) for value in node["enum"]), key=len)
        kind = node.get("type")
        if kind == "object":
            return self._object(node, depth)
        if kind == "array":
            return self._array(node, depth)
        if kind == "string":
            return json.dumps(_string(node))
        return _number(node) if kind in ("integer", "number") else {"boolean": "true"}.get(str(kind), "null")

    def _object(self, node: Mapping[str, Any], depth: int) -> str | None:
        named = node.get("properties", {})
        names = list(node.get("required", ()))
        names += [name for name in named if name not in names][: max(0, node.get("minProperties", 0) - len(names))]
        fields = [(name, self.of(named.get(name), depth + 1)) for name in names]
        if any(value is None for _, value in fields):
            return None
        return "{" + ",".join(f"{json.dumps(name)}:{value}" for name, value in fields) + "}"

    def _array(self, node: Mapping[str, Any], depth: int) -> str | None:
        parts = list(node.get("prefixItems", ()))
        least = node.get("minItems", 0)
        items = [self.of(part, depth + 1) for part in parts[:least]]
        if least > len(parts):
            items += [self.of(node.get("items", True), depth + 1)] * (least - len(parts))
        return None if None in items else "[" + ",".join(map(str, items)) + "]"


def _string(node: Mapping[str, Any]) -> str:
    shortest = shortest_match(node["pattern"]) if "pattern" in node else _FORMATS.get(node.get("format", ""), "")
    return shortest + "x" * max(0, int(node.get("minLength", 0)) - len(shortest))


def _number(node: Mapping[str, Any]) -> str:
    low, high = node.get("minimum"), node.get("maximum")
    if low is not None and low > 0:
        return str(low)
    return str(high) if high is not None and high < 0 else "0"
