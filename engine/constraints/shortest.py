"""The length of the shortest answer that satisfies a constraint."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

from daft_vllm.engine.constraints.constraint import Constraint
from daft_vllm.engine.constraints.enforcement import enforcement_of
from daft_vllm.engine.constraints.patterns import shortest_match

_MOST_PASSES = 40
_LONGEST = 200_000
"""Characters from which on an answer is not written out any more. Few models have a context of so many."""
_FORMATS = {"uuid": "0" * 36, "uri": "a:b", "ipv4": "1.1.1.1", "duration": "P1D"}


def shortest_answer(constraint: Constraint) -> str | None:
    """Return a text as long as the shortest answer to a constraint. None if that isn't known, as for a grammar.

    The text itself may break the constraint: for the digits of a bounded number and the characters of a pattern it may
    have as many others. It has at most ``_LONGEST`` characters, also where the answer has more.
    """
    if constraint.choices is not None:
        return min(constraint.choices, key=len)
    if constraint.regex is not None:
        return shortest_match(constraint.regex, _LONGEST)
    if constraint.json_schema is None:
        return None
    return _shortest(json.loads(str(enforcement_of(constraint).spec)))


def _shortest(schema: Mapping[str, Any]) -> str | None:
    """Return the shortest JSON text of a lowered schema, None if none was found in ``_MOST_PASSES`` passes.

    Each pass knows the definitions whose texts were found before, so no reference is followed twice.
    """
    definitions = schema.get("$defs", {})
    known: dict[str, str] = {}
    for _ in range(_MOST_PASSES):
        writer = _Shortest(known)
        found = {name: text for name, part in definitions.items() if (text := writer.of(part)) is not None}
        if found == known:
            break
        known = found
    return _Shortest(known).of(schema)


class _Shortest:
    """Writes the shortest texts of parts.

    Args:
        known: texts of definitions.
    """

    def __init__(self, known: Mapping[str, str]) -> None:
        self._known = known

    def of(self, node: Any) -> str | None:
        """Return the shortest JSON text of a part, None if it needs a definition that isn't known."""
        if not isinstance(node, Mapping) or not node:
            return "0"
        if "$ref" in node:
            return self._known.get(node["$ref"].rsplit("/", 1)[-1])
        if "anyOf" in node:
            return min(filter(None, map(self.of, node["anyOf"])), key=len, default=None)
        if "enum" in node:
            return min((json.dumps(value, separators=(",", ":")) for value in node["enum"]), key=len)
        kind = node.get("type")
        if kind == "object":
            return self._object(node)
        if kind == "array":
            return self._array(node)
        if kind == "string":
            return json.dumps(_string(node))
        return _number(node) if kind in ("integer", "number") else {"boolean": "true"}.get(str(kind), "null")

    def _object(self, node: Mapping[str, Any]) -> str | None:
        named = node.get("properties", {})
        names = list(node.get("required", ()))
        required = set(names)
        others = (name for name in named if name not in required)
        names += itertools.islice(others, max(0, min(node.get("minProperties", 0), len(named)) - len(names)))
        fields = [(name, self.of(named.get(name))) for name in names]
        if any(value is None for _, value in fields):
            return None
        return _cut("{" + ",".join(f"{json.dumps(name)}:{value}" for name, value in fields) + "}")

    def _array(self, node: Mapping[str, Any]) -> str | None:
        parts = list(node.get("prefixItems", ()))
        least = min(node.get("minItems", 0), _LONGEST)
        items = [self.of(part) for part in parts[:least]]
        if least > len(parts):
            item = self.of(node.get("items", True))
            fits = 1 + _LONGEST // len(item or "0")
            items += [item] * min(least - len(parts), fits)
        return None if None in items else _cut("[" + ",".join(map(str, items)) + "]")


def _cut(text: str) -> str:
    return text[:_LONGEST]


def _string(node: Mapping[str, Any]) -> str:
    shortest = (
        shortest_match(node["pattern"], _LONGEST) if "pattern" in node else _FORMATS.get(node.get("format", ""), "")
    )
    return shortest + "x" * (min(int(node.get("minLength", 0)), _LONGEST) - len(shortest))


def _number(node: Mapping[str, Any]) -> str:
    low, high = node.get("minimum"), node.get("maximum")
    if low is not None and low > 0:
        return str(low)
    return str(high) if high is not None and high < 0 else "0"
