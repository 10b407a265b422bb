"""From a flat schema to the ones that a grammar library enforces, type by type."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import jsonschema

from daft_vllm.engine.constraints.conjunction import TYPES, Flat, all_of, matches, property_schema
from daft_vllm.engine.constraints.formats import ASSERTED, HELD_BY, PATTERNS
from daft_vllm.engine.constraints.patterns import Unsayable, json_text_pattern, pattern_of_length, rust_pattern

_MOST_MULTIPLES = 1000
_INT64 = 2**63
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
_KEYWORDS_OF["number"] = _KEYWORDS_OF["integer"]
Backend = Literal["xgrammar", "guidance"]
"""The library that reads the emitted schema: vLLM's structured-output backends of these names."""

Node = dict[str, Any]
NEVER: Node = {"not": {}}
"""The lowered schema that no value satisfies; only ever compared by identity."""


class Finding(NamedTuple):
    """Something that a schema says and no grammar can.

    Attributes:
        pointer: JSON pointer to the schema that says it.
        keyword: the keyword.
        why: why it can't be enforced.
        instead: what to write in its place.
    """

    pointer: str
    keyword: str
    why: str
    instead: str

    def __str__(self) -> str:
        return f"{self.pointer or '/'}: {self.keyword}: {self.why}. {self.instead}"


class Emitter:
    """Writes flat schemas, in which nothing is left to take apart.

    Args:
        root: the whole document, in which references are looked up.
        dialect: what will read the result.
    """

    def __init__(self, root: Any, dialect: Backend) -> None:
        self._dialect = dialect
        self._validator = jsonschema.Draft202012Validator(root)
        self.narrow = False
        self._found: list[Finding] = []

    def lower(self, schema: Any, pointer: str) -> Node:
        """Return the lowered schema of a part, or ``NEVER``."""
        raise NotImplementedError

    def _of_types(self, flat: Flat, pointer: str) -> list[Node]:
        """Return one lowered schema per type that the flat schema allows."""
        if "not" in flat:  # what could be said otherwise was taken out
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
        """Return those values of an ``enum`` that satisfy what stands beside it."""
        check = self._validator.evolve(schema=denormalised({key: flat[key] for key in flat if key != "enum"}))
        return [value for value in flat["enum"] if check.is_valid(value)]

    def _integer(self, flat: Flat, pointer: str) -> Node:
        lows = [math.ceil(flat["minimum"])] if "minimum" in flat else []
        lows += [math.floor(flat["exclusiveMinimum"]) + 1] if "exclusiveMinimum" in flat else []
        highs = [math.floor(flat["maximum"])] if "maximum" in flat else []
        highs += [math.ceil(flat["exclusiveMaximum"]) - 1] if "exclusiveMaximum" in flat else []
        # The column holds 64 bits: without bounds a model could write digits for ever.
        widest = _INT64 if self._dialect == "xgrammar" else _INT64 // 10  # llguidance's own arithmetic overflows
        low, high = max([*lows, -widest]), min([*highs, widest - 1])
        if low > high:
            return NEVER
        steps = [step for step in flat.get("multipleOf", ()) if step not in (1, 1.0)]
        if steps:
            if high - low < _MOST_MULTIPLES * max(steps):
                values = [v for v in range(low, high + 1) if all(_is_multiple(v, step) for step in steps)]
                return {"enum": values} if values else NEVER
            if self._dialect == "xgrammar":
                self._find(
                    pointer,
                    "multipleOf",
                    "xgrammar doesn't enforce it without close bounds",
                    f"Give minimum and maximum, at most {_MOST_MULTIPLES} values apart, or count in that unit",
                )
        node: Node = {"type": "integer", "minimum": low, "maximum": high}
        return {**node, **_multiples(steps)} if self._dialect == "guidance" else node

    def _number(self, flat: Flat, pointer: str) -> Node:
        if any(step == int(step) for step in flat.get("multipleOf", ())):
            return self._integer(flat, pointer)  # whole multiples are whole numbers
        if flat.get("multipleOf") and self._dialect == "xgrammar":
            self._find(pointer, "multipleOf", "xgrammar doesn't enforce it", "Use an integer, of cents for example")
        low, high = flat.get("minimum", -math.inf), flat.get("maximum", math.inf)
        above, below = flat.get("exclusiveMinimum", -math.inf), flat.get("exclusiveMaximum", math.inf)
        if low > high or low >= below or above >= high or above >= below:
            return NEVER
        least, most = max(low, above), min(high, below)
        ends = [end for end, is_open in ((least, above >= low), (most, below <= high)) if is_open]
        if self._dialect == "guidance" and most - least < 1 and any(end == int(end) for end in ends):
            # llguidance 1.7 lets 2 in between 2, excluded, and 2.5.
            keyword = "exclusiveMinimum" if "exclusiveMinimum" in flat else "exclusiveMaximum"
            self._find(pointer, keyword, "llguidance includes a whole bound next to the other", "Write an integer")
        bounds = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
        node: Node = {"type": "number", **{name: flat[name] for name in bounds if name in flat}}
        return {**node, **_multiples(flat.get("multipleOf", []))} if self._dialect == "guidance" else node

    def _string(self, flat: Flat, pointer: str) -> Node:
        low, high = flat.get("minLength", 0), flat.get("maxLength")
        if high is not None and low > high:
            return NEVER
        formats = [name for name in flat.get("format", ()) if name in ASSERTED]
        for name in formats:
            if name not in PATTERNS and name not in HELD_BY[self._dialect]:
                self._find(
                    pointer, "format", f"{self._dialect} doesn't know {name!r}", "Leave it out, or write a pattern"
                )
        patterns = flat.get("pattern", [])
        lengths = {"minLength": low or None, "maxLength": high}
        node: Node = {"type": "string", **{name: value for name, value in lengths.items() if value is not None}}
        if self._dialect == "guidance":
            says = [{"pattern": PATTERNS[name]} if name in PATTERNS else {"format": name} for name in formats]
            held = [self._pattern(pattern, 0, None, pointer, "pattern") for pattern in patterns]
            says += [{"pattern": pattern} for pattern in held if pattern]
            return {**node, **says[0]} if len(says) == 1 else {**node, "allOf": says} if says else node
        if len(formats) + len(patterns) > 1:
            both = "format" if formats else "pattern"
            self._find(pointer, both, "xgrammar enforces one pattern or format of a string", "Write one pattern")
        if formats and formats[0] not in PATTERNS:
            if low > 1 or high is not None:
                self._find(pointer, "format", "xgrammar enforces no length beside it", "Leave the length out")
            return {"type": "string", "format": formats[0]}
        if formats and low <= 10:  # the shortest date
            low = 0
        if formats or patterns:
            keyword = "format" if formats else "pattern"
            pattern = self._pattern(PATTERNS[formats[0]] if formats else patterns[0], low, high, pointer, keyword)
            return {"type": "string", "pattern": pattern} if pattern else {"type": "string"}
        if not low and high is None:
            return node
        self.narrow = True
        return {"type": "string", "pattern": pattern_of_length(low, high)}

    def _pattern(self, pattern: str, low: int, high: int | None, pointer: str, keyword: str) -> str | None:
        """Return the pattern as the dialect takes it; what it can't hold is a finding, and left out of it."""
        try:
            if self._dialect == "guidance":
                return rust_pattern(pattern)
            held = json_text_pattern(pattern, low, high)
            self.narrow |= "[^" in held
            return held
        except Unsayable as e:
            with_length = (low or high is not None) and "length" in str(e)
            instead = "Write the length into the pattern: ^[a-z]{1,12}$" if with_length else "Write it without"
            self._find(pointer, keyword, str(e), instead)
        if not with_length:
            return None
        return json_text_pattern(pattern)

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
        # An object that names keys and doesn't speak of others gets none: its column has no place for them.
        closed = other is False or (bool(names) and "additionalProperties" not in flat)
        patterns = flat.get("patternProperties", {})
        by_pattern = True
        for name in names:
            value = self.lower(property_schema(flat, name), f"{pointer}/properties/{_escaped(name)}")
            if value is NEVER or not self._validator.evolve(schema=key_schema).is_valid(name):
                if name in required:
                    return NEVER
                closed = True  # or the name could come as one of the others
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
        """Add what is said of the keys that have no name."""
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
        """Return the schema of an object that names no keys, but may say what they look like."""
        counts: Node = {name: node[name] for name in ("minProperties", "maxProperties") if name in node}
        patterns = flat.get("patternProperties", {})
        key_schema = flat.get("propertyNames", True)
        if patterns:
            if key_schema is not True:
                self._find(pointer, "propertyNames", "xgrammar enforces it or patternProperties", "Write one pattern")
            if self._dialect == "guidance":
                values = {
                    key: self.lower(schema, f"{pointer}/patternProperties/{_escaped(key)}")
                    for key, schema in patterns.items()
                }
                held = {
                    self._pattern(key, 0, None, pointer, "patternProperties"): value
                    for key, value in values.items()
                    if value is not NEVER
                }
                if len(held) == len(values) and None not in held:
                    return {"type": "object", "patternProperties": held, "additionalProperties": False, **counts}
            # xgrammar takes one pattern. A key may match all of them.
            value = self.lower(
                all_of(patterns.values()), f"{pointer}/patternProperties/{_escaped(next(iter(patterns)))}"
            )
            if value is not NEVER:
                key = self._pattern(next(iter(patterns)), 0, None, pointer, "patternProperties")
                return _of_keys_like(key, value) | counts if key else {"type": "object"}
            if len(patterns) > 1:
                self._find(pointer, "patternProperties", "one pattern of keys can be enforced", "Name the keys")
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
        pattern = keys.get("pattern") or (pattern_of_length(0, None) if keys == {"type": "string"} else None)
        if values is NEVER or pattern is None or self._dialect == "guidance":
            self._find(pointer, "propertyNames", "one pattern of keys can be enforced", "Write patternProperties")
            return {"type": "object"}
        return _of_keys_like(pattern, values) | counts

    def _find(self, pointer: str, keyword: str, why: str, instead: str) -> None:
        self._found.append(Finding(pointer, keyword, why, f"{instead}."))

    @contextlib.contextmanager
    def _on_trial(self) -> Iterator[None]:
        """Forget what is found inside."""
        before, narrow = len(self._found), self.narrow
        try:
            yield
        finally:
            del self._found[before:]
            self.narrow = narrow


def denormalised(flat: Flat) -> Flat:
    """Return a flat schema as one that a validator reads."""
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


def _multiples(steps: list[float]) -> Node:
    if len(steps) > 1:
        return {"allOf": [{"multipleOf": step} for step in steps]}
    return {"multipleOf": steps[0]} if steps else {}


def _is_multiple(value: int, step: float) -> bool:
    quotient = value / step
    return quotient == int(quotient)


def _of_keys_like(pattern: str, values: Node) -> Node:
    return {"type": "object", "patternProperties": {pattern: values}, "additionalProperties": False}


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
