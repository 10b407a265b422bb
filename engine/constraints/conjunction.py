"""Join two JSON Schemas into one, which a value satisfies if it satisfies both.

Works on flat schemas. These only have keywords about the value itself: references, ``allOf``, ``anyOf`` and ``oneOf``
were resolved before (``daft_vllm.engine.constraints.lowering``). Draft 2020-12.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from daft_vllm.engine.constraints.limits.equality import value_key
from daft_vllm.engine.constraints.limits.matcher import UndecidedMatch, matcher
from daft_vllm.errors import SchemaError

Flat = dict[str, Any]

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
ANNOTATIONS = frozenset(
    (
        *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$schema"),
        *("$id", "$anchor", "$defs", "definitions", "contentEncoding", "contentMediaType", "contentSchema"),
        "$vocabulary",
    )
)
_HIGHEST_WINS = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_LOWEST_WINS = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_COUNTS = frozenset(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"))
_OBJECT = ("properties", "patternProperties", "additionalProperties", "required")
_ARRAY = ("prefixItems", "items")
LISTED = ("not", "contains", "conditions", "pattern", "format", "multipleOf")
"""Keywords that can have different values in two schemas: a flat schema keeps all of these values, in a list."""


def is_reference(schema: Any) -> bool:
    """Whether a schema says nothing but where another one is."""
    return isinstance(schema, Mapping) and set(schema) - ANNOTATIONS == {"$ref"}


def to_flat(schema: Mapping[str, Any]) -> Flat:
    """Return a schema in the form of a flat one: without annotations, older drafts' keywords as 2020-12 has them."""
    flat = {name: value for name, value in schema.items() if name not in ANNOTATIONS}
    for name in _COUNTS & flat.keys():
        if isinstance(flat[name], float) and flat[name].is_integer():
            flat[name] = int(flat[name])
    for bound in ("Minimum", "Maximum"):  # draft 4: a flag beside "minimum"
        flag = flat.get(f"exclusive{bound}")
        if isinstance(flag, bool):
            del flat[f"exclusive{bound}"]
            if flag and bound.lower() in flat:
                flat[f"exclusive{bound}"] = flat.pop(bound.lower())
    if isinstance(flat.get("items"), list):  # up to draft 2019-09
        flat["prefixItems"] = flat.pop("items")
        if "additionalItems" in flat:
            flat["items"] = flat["additionalItems"]
    flat.pop("additionalItems", None)
    for name, needed in flat.pop("dependencies", {}).items():
        flat.setdefault("dependentRequired" if isinstance(needed, list) else "dependentSchemas", {})[name] = needed
    if "const" in flat:
        flat["enum"] = intersect_values(flat["enum"], [flat["const"]]) if "enum" in flat else [flat["const"]]
        del flat["const"]
    if isinstance(flat.get("type"), str):
        flat["type"] = [flat["type"]]
    condition = {name: flat.pop(name) for name in ("if", "then", "else") if name in flat}
    if "if" in condition:
        flat["conditions"] = condition
    for name in LISTED:
        if name in flat:
            flat[name] = [flat[name]]
    return flat


def intersect(a: Flat, b: Flat) -> Flat:
    """Return the flat schema of the values that satisfy both. If its ``type`` or ``enum`` is empty, there are none."""
    both = {**b, **a}
    for name in a.keys() & b.keys():
        if name in _HIGHEST_WINS:
            both[name] = max(a[name], b[name])
        elif name in _LOWEST_WINS:
            both[name] = min(a[name], b[name])
        elif name == "type":
            both[name] = intersect_types(a[name], b[name])
        elif name == "enum":
            both[name] = intersect_values(a[name], b[name])
        elif name in LISTED:
            both[name] = a[name] + [value for value in b[name] if value not in a[name]]
        elif name == "uniqueItems":
            both[name] = a[name] or b[name]
        elif name in ("minContains", "maxContains"):
            both[name] = (max if name == "minContains" else min)(a[name], b[name])
        elif name == "dependentRequired":
            both[name] = {key: [*a[name].get(key, ()), *b[name].get(key, ())] for key in {**a[name], **b[name]}}
        elif name == "dependentSchemas":
            both[name] = {key: all_of(s[name][key] for s in (a, b) if key in s[name]) for key in {**a[name], **b[name]}}
        elif name == "propertyNames":
            both[name] = all_of((a[name], b[name]))
    if any(name in a for name in _OBJECT) and any(name in b for name in _OBJECT):
        both.update(_intersect_objects(a, b))
    if any(name in a for name in _ARRAY) and any(name in b for name in _ARRAY):
        both.update(_intersect_arrays(a, b))
    return both


def all_of(schemas: Iterable[Any]) -> Any:
    """Return one schema that requires all of ``schemas``. Equal and trivial ones are dropped, others not simplified."""
    distinct: list[Any] = []
    for schema in schemas:
        if schema is False:
            return False
        if schema is not True and schema != {} and schema not in distinct:
            distinct.append(schema)
    if not distinct:
        return True
    return distinct[0] if len(distinct) == 1 else {"allOf": distinct}


def property_schema(schema: Mapping[str, Any], name: str) -> Any:
    """Return the schema that an object's flat schema has for the value of ``name``."""
    parts = [schema["properties"][name]] if name in schema.get("properties", {}) else []
    parts += [value for pattern, value in schema.get("patternProperties", {}).items() if matches(pattern, name)]
    return all_of(parts) if parts else schema.get("additionalProperties", True)


def matches(pattern: str, text: str) -> bool:
    """Whether a schema's regular expression is found in ``text``. False if Python can't read the expression."""
    try:
        return matcher(pattern)(text)
    except re.error:
        return False
    except UndecidedMatch as e:
        raise SchemaError(f"patternProperties: {e}. Write a simpler pattern.") from None


def _intersect_objects(a: Flat, b: Flat) -> Flat:
    names = {**a.get("properties", {}), **b.get("properties", {})}
    joined: Flat = {
        "properties": {name: all_of((property_schema(a, name), property_schema(b, name))) for name in names},
        "required": [*dict.fromkeys([*a.get("required", ()), *b.get("required", ())])],
    }
    if "additionalProperties" in a or "additionalProperties" in b:
        joined["additionalProperties"] = all_of(s.get("additionalProperties", True) for s in (a, b))
    patterns: dict[str, Any] = {}
    for one, other in ((a, b), (b, a)):
        for pattern, schema in one.get("patternProperties", {}).items():
            # A key that matches patterns of both schemas gets stricter rules here than necessary, never looser ones.
            same = pattern in other.get("patternProperties", {})
            rest = True if same else other.get("additionalProperties", True)
            if rest is not True and (named := [name for name in names if matches(pattern, name)]):
                pattern = _excluding(pattern, named)  # "properties" has the schemas of these names
            patterns[pattern] = all_of((schema, rest, patterns.get(pattern, True)))
    if patterns:
        joined["patternProperties"] = patterns
    return joined


def _excluding(pattern: str, names: Iterable[str]) -> str:
    """Return a pattern that is found in the same texts as ``pattern``, except in ``names``."""
    return rf"^(?!(?:{'|'.join(map(re.escape, names))})$)(?=[\s\S]*?(?:{pattern}))"


def _intersect_arrays(a: Flat, b: Flat) -> Flat:
    def item(schema: Flat, index: int) -> Any:
        prefix = schema.get("prefixItems", ())
        return prefix[index] if index < len(prefix) else schema.get("items", True)

    length = max(len(a.get("prefixItems", ())), len(b.get("prefixItems", ())))
    joined: Flat = {"items": all_of((a.get("items", True), b.get("items", True)))} if "items" in {**a, **b} else {}
    if length:
        joined["prefixItems"] = [all_of((item(a, i), item(b, i))) for i in range(length)]
    return joined


def intersect_types(a: Iterable[str], b: Iterable[str]) -> list[str]:
    """Return the types that are in both. An integer is also a number."""
    mine, others = (set(types) | ({"integer"} if "number" in types else set()) for types in (list(a), list(b)))
    both = mine & others
    return [name for name in TYPES if name in both and not (name == "integer" and "number" in both)]


def intersect_values(a: Iterable[Any], b: Iterable[Any]) -> list[Any]:
    """Return the values that are in both, by JSON's equality: 1 and 1.0 are the same, 1 and true are not."""
    others = {value_key(value) for value in b}
    return [value for value in a if value_key(value) in others]
