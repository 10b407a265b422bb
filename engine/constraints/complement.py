"""The opposite of a JSON Schema: schemas of the values that don't satisfy it. For ``not``, ``if`` and ``oneOf``.

Works on flat schemas (``conjunction.py``). The opposite never allows a value that satisfies the schema. Some keywords
have no opposite (``pattern``, ``items``, ``format``). With these, the result may leave out values that don't satisfy
the schema. Such a result is not exact, and must not be negated again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Set
from typing import Any, NamedTuple

from daft_vllm.engine.constraints.conjunction import TYPES, Flat, matches
from daft_vllm.engine.constraints.patterns import pattern_without

_MOST_VALUES = 200
_LONGEST = 100
"""Characters of a string whose opposite is written. A pattern of all other texts has a group for each character."""
_BELOW = {"minimum": "exclusiveMaximum", "exclusiveMinimum": "maximum"}
_ABOVE = {"maximum": "exclusiveMinimum", "exclusiveMaximum": "minimum"}
_COUNTS = (
    ("string", "minLength", "maxLength"),
    ("array", "minItems", "maxItems"),
    ("object", "minProperties", "maxProperties"),
)
_WITHOUT_OPPOSITE = {
    "string": ("pattern", "format"),
    "number": ("multipleOf",),
    "array": ("items", "prefixItems", "uniqueItems", "contains", "minContains", "maxContains"),
    "object": ("propertyNames", "dependentRequired", "dependentSchemas"),
}


class Opposite(NamedTuple):
    """Flat schemas of the values that don't satisfy a schema, and whether they cover all of those values."""

    schemas: list[Flat]
    exact: bool = True


def complement(flat: Flat, names: Set[str] | None, of_part: Callable[[Any], list[Any] | None]) -> Opposite | None:
    """Return the opposite of ``flat``. None if it would lose a whole type, or if ``flat`` has ``not`` or ``if``.

    Args:
        flat: a flat schema without references, choices and ``enum``.
        names: the only keys that objects can have here. None: any key.
        of_part: returns schemas of the values that don't satisfy a part, or None if they can't be written.
    """
    if flat.keys() & {"not", "conditions"}:
        return None
    types = _types(flat)
    found: list[Flat] = []
    lost: list[Any] = []
    exact = not ("integer" in types and "number" not in types)  # only "not" can describe numbers that aren't whole
    if names is None and flat.keys() & {"additionalProperties", "patternProperties"}:
        exact = False

    def part_of(part: Any) -> list[Any]:
        opposite = of_part(part)
        if opposite is None:
            lost.append(part)
        return opposite or []

    others = [
        kind for kind in TYPES if kind not in types and not (kind in ("integer", "number") and _is_numeric(types))
    ]
    if others:
        found.append({"type": [kind for kind in others if not (kind == "integer" and "number" in others)]})
    for kind in types:
        opposite = {
            "object": lambda: _of_object(flat, names, part_of),
            "integer": lambda: _of_number(flat, "integer"),
            "number": lambda: _of_number(flat, "number"),
        }.get(kind, list)()
        for typed, low, high in _COUNTS:
            if typed == kind and flat.get(low, 0) > 0:
                opposite.append({"type": [kind], high: flat[low] - 1})
            if typed == kind and high in flat:
                opposite.append({"type": [kind], low: flat[high] + 1})
        dropped = [name for name in _WITHOUT_OPPOSITE.get("number" if kind == "integer" else kind, ()) if name in flat]
        if (dropped or (kind == "object" and lost)) and not opposite:
            return None
        exact = exact and not dropped and not lost
        found += opposite
    return Opposite(found, exact)


def complement_of_values(values: list[Any]) -> Opposite | None:
    """Return the opposite of ``values``. None if they are too many or too long, or one is a filled list or object."""
    if len(values) > _MOST_VALUES or any(isinstance(value, list | dict) and value for value in values):
        return None
    strings = [value for value in values if isinstance(value, str)]
    if any(len(value) > _LONGEST for value in strings):
        return None
    booleans = [value for value in values if isinstance(value, bool)]
    numbers = sorted({value for value in values if isinstance(value, int | float) and not isinstance(value, bool)})
    absent = {
        "null": None not in values,
        "boolean": not booleans,
        "number": not numbers,
        "string": not strings,
        "array": [] not in values,
        "object": {} not in values,
    }
    found: list[Flat] = [{"type": [kind for kind, is_absent in absent.items() if is_absent]}]
    if strings:
        found.append({"type": ["string"], "pattern": [pattern_without(strings)]})
    if len(set(booleans)) == 1:
        found.append({"enum": [not booleans[0]]})
    if numbers:
        edges: list[float | None] = [None, *numbers, None]
        for low, high in itertools.pairwise(edges):
            bounds = {"exclusiveMinimum": low, "exclusiveMaximum": high}
            found.append({"type": ["number"], **{name: value for name, value in bounds.items() if value is not None}})
    if not absent["array"]:
        found.append({"type": ["array"], "minItems": 1})
    if not absent["object"]:
        found.append({"type": ["object"], "minProperties": 1})
    return Opposite(found)


def _types(flat: Flat) -> list[str]:
    types = flat.get("type")
    return [kind for kind in TYPES if kind != "integer"] if types is None else list(types)


def _is_numeric(types: list[str]) -> bool:
    return "integer" in types or "number" in types


def _of_number(flat: Flat, kind: str) -> list[Flat]:
    return [{"type": [kind], other: flat[bound]} for bound, other in {**_BELOW, **_ABOVE}.items() if bound in flat]


def _of_object(flat: Flat, names: Set[str] | None, of_part: Callable[[Any], list[Any]]) -> list[Flat]:
    found: list[Flat] = []
    for name in flat.get("required", ()):
        found.append({"type": ["object"], "properties": {name: False}})
        if names is not None and name not in names:
            return found[-1:]  # objects here never have this key, so none of them satisfies the schema
    for name in sorted(names) if names is not None else flat.get("properties", {}):
        patterned = [value for pattern, value in flat.get("patternProperties", {}).items() if matches(pattern, name)]
        parts = [flat["properties"][name]] if name in flat.get("properties", {}) else []
        parts += patterned
        if not parts and "additionalProperties" in flat:
            parts = [flat["additionalProperties"]]
        for part in parts:
            opposite = of_part(part)
            if opposite:
                value = opposite[0] if len(opposite) == 1 else {"anyOf": opposite}
                found.append({"type": ["object"], "required": [name], "properties": {name: value}})
    return found
