"""What a model is told about the format of its answer, in words: small models do better when they know the fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from daft_vllm.engine import Constraint
from daft_vllm.engine.references import resolve
from daft_vllm.udf.type_schema import TYPE_HINT

_DEEPEST = 6
_LONGEST = 6000
"""Characters, about 1,500 tokens: a format that takes more words is told less deeply."""
_MOST_VALUES = 80
_HINTED = {
    "timestamp": "date and time such as 2024-05-31T13:45:00",
    "time": "time such as 13:45:00",
    "duration": "duration such as P1DT2H30M",
    "decimal": "decimal number as text",
    "binary": "text",
}
_FORMATS = {"date": "a date such as 2024-05-31", "date-time": "a date and time such as 2024-05-31T13:45:00Z"}
_NAMES = {"string": "text", "integer": "integer", "number": "number", "boolean": "true or false", "null": "null"}


def describe(constraint: Constraint) -> str | None:
    """Return what to tell the model about its answer; None where the constraint says it better than words.

    The same for all rows of an expression, so that it is part of the prefix that they share.
    """
    if constraint.choices is not None:
        return f"Answer with one of: {', '.join(constraint.choices[:_MOST_VALUES])}."
    if constraint.regex is not None:
        return f"Answer with text that matches the regular expression {constraint.regex}"
    if constraint.json_schema is None:
        return None
    schema = json.loads(constraint.json_schema)
    if not schema:
        return "Answer with JSON."
    for deepest in range(_DEEPEST, 0, -1):
        kind, lines = _Words(schema, deepest).of(schema, 0, ())
        text = "\n".join([f"Answer with JSON: {kind}{':' if lines else '.'}", *lines])
        if len(text) <= _LONGEST:
            return text
    return "Answer with JSON."


class _Words:
    def __init__(self, root: Mapping[str, Any], deepest: int) -> None:
        self._root = root
        self._deepest = deepest

    def of(self, schema: Any, depth: int, seen: tuple[str, ...]) -> tuple[str, list[str]]:
        """Return the kind of a value in a few words, and the lines that say more about it."""
        if not isinstance(schema, Mapping) or len(seen) > 4 * _DEEPEST:
            return "any value", []
        if TYPE_HINT in schema:
            return next(words for hint, words in _HINTED.items() if schema[TYPE_HINT].startswith(hint)), []
        if "$ref" in schema:
            reference = schema["$ref"]
            if reference in seen:
                return f"a {reference.rsplit('/', 1)[-1]} as above", []
            meant = resolve(reference, self._root)
            whole = {**meant, **_told(schema)} if isinstance(meant, Mapping) else meant
            return self.of(whole, depth, (*seen, reference))
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                return self._choice(schema[keyword], depth, seen)
        if len(schema.get("allOf", ())) == 1 and isinstance(schema["allOf"][0], Mapping):
            return self.of({**schema["allOf"][0], **_told(schema)}, depth, seen)
        if "const" in schema:
            return json.dumps(schema["const"], ensure_ascii=False), []
        if "enum" in schema:
            values = [json.dumps(value, ensure_ascii=False) for value in schema["enum"][:_MOST_VALUES]]
            return f"one of {', '.join(values)}", []
        kind = schema.get("type")
        if isinstance(kind, list):
            return self._choice([{**schema, "type": one} for one in kind], depth, seen)
        if kind == "object" and schema.get("properties") and depth < self._deepest:
            required = set(schema.get("required", ()))
            lines = []
            for name, part in schema["properties"].items():
                lines += self._line(name, part, name not in required, depth, seen)
            return "an object with the fields", lines
        if kind == "object":
            others = schema.get("additionalProperties")
            inner, more = self.of(others if isinstance(others, Mapping) else True, depth, seen)
            return f"an object from names to {inner}", more
        if kind == "array" and "prefixItems" in schema:
            return f"a list of {', '.join(self.of(part, self._deepest, seen)[0] for part in schema['prefixItems'])}", []
        if kind == "array":
            inner, more = self.of(schema.get("items", True), depth, seen)
            return f"a list{_bounds(schema, 'Items')}, each {inner}", more
        return f"{_NAMES.get(str(kind), 'any value')}{_limits(schema)}", []

    def _line(self, name: str, part: Any, optional: bool, depth: int, seen: tuple[str, ...]) -> list[str]:
        kind, lines = self.of(part, depth + 1, seen)
        about = part.get("description") if isinstance(part, Mapping) else None
        if about is None and isinstance(part, Mapping) and "$ref" in part:
            meant = resolve(part["$ref"], self._root)
            about = meant.get("description") if isinstance(meant, Mapping) else None
        said = f": {' '.join(str(about).split())}" if about else ""
        return [f"{'  ' * depth}- {name} ({kind}{', may be left out' if optional else ''}){said}", *lines]

    def _choice(self, options: list[Any], depth: int, seen: tuple[str, ...]) -> tuple[str, list[str]]:
        kinds, lines = [], []
        for option in options:
            kind, more = self.of(option, depth, seen)
            kinds.append(kind if not more else f"{kind} {_first_names(more)}")
            lines += [line for line in more if line not in lines]
        return " or ".join(dict.fromkeys(kinds)), lines


def _told(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {name: schema[name] for name in ("description",) if name in schema}


def _first_names(lines: list[str]) -> str:
    indent = len(lines[0]) - len(lines[0].lstrip())
    top = [line for line in lines if len(line) - len(line.lstrip()) == indent]
    return ", ".join(line.lstrip(" -").split(" (", 1)[0] for line in top)


def _limits(schema: Mapping[str, Any]) -> str:
    if "format" in schema:
        return f", {_FORMATS.get(schema['format'], schema['format'])}"
    if schema.get("type") in ("integer", "number"):
        low, high = schema.get("minimum"), schema.get("maximum")
        return f" from {low} to {high}" if low is not None and high is not None else ""
    if "pattern" in schema:
        return f" that matches {schema['pattern']}" if len(schema["pattern"]) <= 60 else ""
    return f" of at most {schema['maxLength']} characters" if "maxLength" in schema else ""


def _bounds(schema: Mapping[str, Any], what: str) -> str:
    low, high = schema.get(f"min{what}"), schema.get(f"max{what}")
    if low is not None and low == high:
        return f" of {low}"
    return f" of at most {high}" if high is not None else ""
