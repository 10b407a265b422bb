"""Write a flat schema as schemas that a grammar library enforces, one for each type."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

from daft_vllm.engine.constraints.conjunction import TYPES, Flat, all_of, matches, property_schema
from daft_vllm.engine.constraints.finding import NEVER, Find, Finding, Node
from daft_vllm.engine.constraints.formats import ASSERTED, PATTERNS
from daft_vllm.engine.constraints.libraries.base import Library, StringRules
from daft_vllm.engine.constraints.libraries.xgrammar import MOST_MULTIPLES
from daft_vllm.engine.constraints.limits.validator import validator_of

_KEYWORDS_OF = {
    "integer": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "array": (
        *("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains", "minContains", "maxContains"),
    ),
    "object": (
        *("properties", "patternProperties", "additionalProperties", "required", "propertyNames", "minProperties"),
        *("maxProperties", "dependentRequired", "dependentSchemas"),
    ),
}
_EXACT_DIGITS = 15
"""The most digits of which a double keeps every one."""
_KEYWORDS_OF["number"] = _KEYWORDS_OF["integer"]


class Emitter:
    """Writes flat schemas for a grammar library.

    Args:
        root: the whole document, in which references are looked up.
        library: the library that will read the result.
    """

    def __init__(self, root: Any, library: Library) -> None:
        self._library = library
        self._validator = validator_of(root)
        self.narrow = False
        self._found: list[Finding] = []

    def lower(self, schema: Any, pointer: str) -> Node:
        """Return the lowered schema of a part, or ``NEVER``."""
        raise NotImplementedError

    def _of_types(self, flat: Flat, pointer: str) -> list[Node]:
        """Return one lowered schema per type that the flat schema allows."""
        if "not" in flat:  # what could be written without "not" was removed before
            self._find(pointer, "not", "a grammar says what may be written, not what may not", "Say what is allowed")
        for condition in flat.get("conditions", ()):
            if "then" in condition or "else" in condition:
                self._find(
                    pointer,
                    "if",
                    "a grammar can't look back at what was written",
                    "Write the cases as branches of anyOf",
                )
        if "enum" in flat:
            return self._of_values(flat)
        types = flat.get("type")
        if types is None:
            types = [kind for kind in TYPES if kind != "integer" and any(k in flat for k in _KEYWORDS_OF.get(kind, ()))]
            if not types:
                return [{}]
        emit: dict[str, Callable[[Flat, str], Node]] = {
            "integer": self._integer,
            "number": self._number,
            "string": self._string,
            "array": self._array,
            "object": self._object,
        }
        types = [kind for kind in types if not (kind == "integer" and "number" in types)]
        return [emit[kind](flat, pointer) if kind in emit else {"type": kind} for kind in types]

    def _of_values(self, flat: Flat) -> list[Node]:
        values = self._values(flat)
        return [{"enum": values}] if values else [NEVER]

    def _values(self, flat: Flat) -> list[Any]:
        """Return the values of an ``enum`` that satisfy the keywords beside it."""
        check = self._validator.evolve(schema=from_flat({key: flat[key] for key in flat if key != "enum"}))
        return [value for value in flat["enum"] if check.is_valid(value)]

    def _integer(self, flat: Flat, pointer: str) -> Node:
        lows = [math.ceil(flat["minimum"])] if "minimum" in flat else []
        lows += [math.floor(flat["exclusiveMinimum"]) + 1] if "exclusiveMinimum" in flat else []
        highs = [math.floor(flat["maximum"])] if "maximum" in flat else []
        highs += [math.ceil(flat["exclusiveMaximum"]) - 1] if "exclusiveMaximum" in flat else []
        # The column holds 64 bits. Without bounds a model could write digits without end.
        limit = self._library.integer_limit
        low, high = max([*lows, -limit]), min([*highs, limit - 1])
        if low > high:
            return NEVER
        steps = [step for step in flat.get("multipleOf", ()) if step not in (1, 1.0)]
        if steps and high - low < MOST_MULTIPLES * max(steps):
            values = [v for v in range(low, high + 1) if all(_is_multiple(v, step) for step in steps)]
            return {"enum": values} if values else NEVER
        node: Node = {"type": "integer", "minimum": low, "maximum": high}
        return {**node, **self._library.multiples(steps, self._finder(pointer), whole=True)}

    def _number(self, flat: Flat, pointer: str) -> Node:
        if any(step == int(step) for step in flat.get("multipleOf", ())):
            return self._integer(flat, pointer)  # whole multiples are whole numbers
        find = self._finder(pointer)
        multiples = self._library.multiples(flat.get("multipleOf", []), find, whole=False)
        low, high = flat.get("minimum", -math.inf), flat.get("maximum", math.inf)
        above, below = flat.get("exclusiveMinimum", -math.inf), flat.get("exclusiveMaximum", math.inf)
        if steps := flat.get("multipleOf"):  # a number of more digits is none any more, once it is read as a double
            limit = float(10 ** (_EXACT_DIGITS - max(map(_decimals, steps))))
            flat = {**flat, "minimum": max(low, -limit), "maximum": min(high, limit)}
            low, high = flat["minimum"], flat["maximum"]
        if low > high or low >= below or above >= high or above >= below:
            return NEVER
        least, most = max(low, above), min(high, below)
        excluded = [end for end, is_open in ((least, above >= low), (most, below <= high)) if is_open]
        keyword = "exclusiveMinimum" if "exclusiveMinimum" in flat else "exclusiveMaximum"
        self._library.check_bounds(least, most, excluded, keyword, find)
        bounds = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
        return {"type": "number", **{name: flat[name] for name in bounds if name in flat}, **multiples}

    def _string(self, flat: Flat, pointer: str) -> Node:
        low, high = flat.get("minLength", 0), flat.get("maxLength")
        if high is not None and low > high:
            return NEVER
        find = self._finder(pointer)
        formats = [name for name in flat.get("format", ()) if name in ASSERTED]
        for name in formats:
            if name not in PATTERNS and name not in self._library.formats:
                find("format", f"{self._library.name} doesn't know {name!r}", "Leave it out, or write a pattern")
        node, narrow = self._library.string(StringRules(low, high, formats, flat.get("pattern", [])), find)
        self.narrow |= narrow
        return node

    def _key_pattern(self, pattern: str, pointer: str) -> str | None:
        """Return a pattern of keys in the library's syntax, None if it can't be written in it."""
        text, narrow = self._library.pattern_or_finding(pattern, "patternProperties", self._finder(pointer))
        self.narrow |= narrow
        return text

    def _array(self, flat: Flat, pointer: str) -> Node:
        least, most = flat.get("minItems", 0), flat.get("maxItems", math.inf)
        if flat.get("uniqueItems") and most > 1:
            self._find(pointer, "uniqueItems", "a grammar can't look back", "Leave it out, drop duplicates afterwards")
        contains = [one for one in flat.get("contains", ()) if flat.get("minContains", 1) > 0]
        if contains or "maxContains" in flat:
            self._find(pointer, "contains", "a grammar can't look ahead", "Put the item first, with prefixItems")
        prefix: list[Node] = []
        rest = flat.get("items", True)
        for index, item in enumerate(flat.get("prefixItems", ())):
            lowered = self.lower(item, f"{pointer}/prefixItems/{index}")
            if lowered is NEVER:
                most = min(most, index)
                break
            prefix.append(lowered)
        items = self.lower(rest, f"{pointer}/items")
        if items is NEVER:
            most = min(most, len(flat.get("prefixItems", ())))
        if least > most:
            return NEVER
        node: Node = {"type": "array"}
        if prefix:
            prefix = prefix[: int(most)] if most != math.inf else prefix
            node["prefixItems"] = prefix
        if most == len(prefix) or items is NEVER:
            if not prefix:
                return {"enum": [[]]}
            return {**node, "items": False, **({"minItems": least} if least else {})}
        node["items"] = items or True
        if least > 0:
            node["minItems"] = least
        if most != math.inf:
            node["maxItems"] = most
        return node

    def _object(self, flat: Flat, pointer: str) -> Node:
        required = list(dict.fromkeys(flat.get("required", ())))
        names = {**flat.get("properties", {}), **dict.fromkeys(required)}
        other = flat.get("additionalProperties", True)
        key_schema = flat.get("propertyNames", True)
        properties: dict[str, Node] = {}
        # A schema that names keys and has no additionalProperties gets no other keys: its column has no place for them.
        closed = other is False or (bool(names) and "additionalProperties" not in flat)
        patterns = flat.get("patternProperties", {})
        by_pattern = True
        for name in names:
            value = self.lower(property_schema(flat, name), f"{pointer}/properties/{_escaped(name)}")
            if value is NEVER or not self._validator.evolve(schema=key_schema).is_valid(name):
                if name in required:
                    return NEVER
                closed = True  # otherwise this key would be allowed as an additional one
                by_pattern = by_pattern and not any(matches(pattern, name) for pattern in patterns)
            else:
                properties[name] = value
        least, most = flat.get("minProperties", 0), flat.get("maxProperties")
        if most is not None and len(required) > most:
            return NEVER
        node: Node = {"type": "object", "properties": properties, "required": required}
        if most is not None:
            node["maxProperties"] = most
        if least > len(required):
            node["minProperties"] = least
        if properties or (closed and not (patterns and by_pattern)):
            return self._with_others(node, flat, pointer, closed=closed or bool(patterns) or key_schema is not True)
        return self._of_free_keys(node, flat, pointer, closed=closed)

    def _with_others(self, node: Node, flat: Flat, pointer: str, *, closed: bool) -> Node:
        """Add the rule for additional keys, those that the schema doesn't name."""
        others = (
            NEVER if closed else self.lower(flat.get("additionalProperties", True), f"{pointer}/additionalProperties")
        )
        if others is NEVER:
            if node.get("minProperties", 0) > len(node["properties"]):
                return NEVER
            if not node["properties"]:
                return {"enum": [{}]}
            return {**node, "additionalProperties": False}
        return {**node, "additionalProperties": others or True}

    def _of_free_keys(self, node: Node, flat: Flat, pointer: str, *, closed: bool) -> Node:
        """Return the schema of an object that names no keys, but may have patterns or a schema for them."""
        counts: Node = {name: node[name] for name in ("minProperties", "maxProperties") if name in node}
        patterns = flat.get("patternProperties", {})
        key_schema = flat.get("propertyNames", True)
        if patterns:
            if key_schema is not True:
                self._find(pointer, "propertyNames", "it isn't enforced beside patternProperties", "Write one pattern")
            if self._library.enforces_several_key_patterns:
                values = {
                    key: self.lower(schema, f"{pointer}/patternProperties/{_escaped(key)}")
                    for key, schema in patterns.items()
                }
                kept = {self._key_pattern(key, pointer): value for key, value in values.items() if value is not NEVER}
                if len(kept) == len(values) and None not in kept:
                    return {"type": "object", "patternProperties": kept, "additionalProperties": False, **counts}
            # xgrammar takes one pattern: the first. A key may match them all, so its value has to satisfy all schemas.
            value = self.lower(
                all_of(patterns.values()), f"{pointer}/patternProperties/{_escaped(next(iter(patterns)))}"
            )
            if value is not NEVER:
                key = self._key_pattern(next(iter(patterns)), pointer)
                return _object_with_key_pattern(key, value) | counts if key else {"type": "object"}
            if len(patterns) > 1:
                self._find(pointer, "patternProperties", "only one pattern of keys can be enforced", "Name the keys")
                return {"type": "object"}
            return NEVER if counts.get("minProperties") else {"enum": [{}]}
        if key_schema is True:
            return self._with_others({**node, **counts}, flat, pointer, closed=closed)
        keys = self.lower({"allOf": [{"type": "string"}, key_schema]}, f"{pointer}/propertyNames")
        if keys is NEVER:
            return NEVER if counts.get("minProperties") else {"enum": [{}]}
        values = self.lower(flat.get("additionalProperties", True), f"{pointer}/additionalProperties")
        if "enum" in keys and values is not NEVER:
            named: Node = {"type": "object", "properties": dict.fromkeys(keys["enum"], values), "required": []}
            return self._with_others({**named, **counts}, flat, pointer, closed=True)
        pattern = self._library.pattern_of_keys(keys)
        if values is NEVER or pattern is None:
            self._find(pointer, "propertyNames", "only one pattern of keys can be enforced", "Write patternProperties")
            return {"type": "object"}
        return _object_with_key_pattern(pattern, values) | counts

    def _find(self, pointer: str, keyword: str, why: str, instead: str) -> None:
        self._found.append(Finding(pointer, keyword, why, f"{instead}."))

    def _finder(self, pointer: str) -> Find:
        """Return a function that adds findings at ``pointer``."""
        return functools.partial(self._find, pointer)

    @contextlib.contextmanager
    def _on_trial(self) -> Iterator[None]:
        """Drop the findings of the block inside, and its change of ``narrow``."""
        before, narrow = len(self._found), self.narrow
        try:
            yield
        finally:
            del self._found[before:]
            self.narrow = narrow


def from_flat(flat: Flat) -> Flat:
    """Return a flat schema in the standard form, for a validator."""
    schema = dict(flat)
    several = {
        name: schema.pop(name)
        for name in ("not", "contains", "conditions", "pattern", "format", "multipleOf")
        if name in schema
    }
    parts = [value if name == "conditions" else {name: value} for name, values in several.items() for value in values]
    if parts:
        schema["allOf"] = parts
    return schema


def _decimals(step: float) -> int:
    """Return how many digits after the point a number has."""
    exponent = Decimal(str(step)).as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0


def _is_multiple(value: int, step: float) -> bool:
    return Fraction(value) % Fraction(str(step)) == 0


def _object_with_key_pattern(pattern: str, values: Node) -> Node:
    return {"type": "object", "patternProperties": {pattern: values}, "additionalProperties": False}


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
