"""What a model is told about the format of its answer: the shape of the JSON, then what is to be known of its fields.

In this order: a list of choices within the shape made SmolLM2-135M take the first of them nearly always. As it is, that
model names the category of 47 packages rightly 16 times in place of 12 (``python -m benchmarks.describing``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from daft_vllm.engine import Constraint
from daft_vllm.engine.references import resolve
from daft_vllm.udf.type_schema import TYPE_HINT

_ANY = "..."
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
    for deepest in range(_DEEPEST, 0, -1):
        words = _Words(schema, deepest)
        shape = words.shape(schema, "", ())
        text = "\n".join([f"Answer with JSON: {shape}" if shape != _ANY else "Answer with JSON.", *words.lines])
        if len(text) <= _LONGEST:
            return text
    return "Answer with JSON."


class _Words:
    """The shape of a schema's values; ``lines`` says what it doesn't show."""

    def __init__(self, root: Mapping[str, Any], deepest: int) -> None:
        self._root = root
        self._deepest = deepest
        self.lines: list[str] = []

    def shape(self, schema: Any, path: str, seen: tuple[str, ...]) -> str:
        if not isinstance(schema, Mapping) or path.count(".") > self._deepest or len(seen) > 4 * _DEEPEST:
            return _ANY
        if "$ref" in schema:
            reference = schema["$ref"]
            if reference in seen:
                return _ANY
            meant = resolve(reference, self._root)
            whole = {**meant, **_told(schema)} if isinstance(meant, Mapping) else meant
            return self.shape(whole, path, (*seen, reference))
        if len(schema.get("allOf", ())) == 1 and isinstance(schema["allOf"][0], Mapping):
            return self.shape({**schema["allOf"][0], **_told(schema)}, path, seen)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                return self._choice({**schema, keyword: None}, schema[keyword], path, seen)
        kind = schema.get("type")
        if isinstance(kind, list):
            return self._choice(schema, [{**schema, "type": one} for one in kind], path, seen)
        if "const" in schema:
            return json.dumps(schema["const"], ensure_ascii=False)
        self._say(path, _kind(schema), schema.get("description"))
        if kind == "object" and schema.get("properties"):
            optional = schema["properties"].keys() - set(schema.get("required", ()))
            if optional:
                self._say(path, f"may leave out {', '.join(n for n in schema['properties'] if n in optional)}", None)
            inner = (
                f"{json.dumps(name, ensure_ascii=False)}: {self.shape(part, f'{path}.{name}', seen)}"
                for name, part in schema["properties"].items()
            )
            return "{" + ", ".join(inner) + "}"
        if kind == "object":
            others = schema.get("additionalProperties")
            return '{"...": ' + self.shape(others if isinstance(others, Mapping) else True, f"{path}.*", seen) + "}"
        if kind == "array":
            prefix = [self.shape(part, f"{path}.{i}", seen) for i, part in enumerate(schema.get("prefixItems", ()))]
            rest = schema.get("items", True)
            if rest is False or schema.get("maxItems") == len(prefix):
                return f"[{', '.join(prefix)}]"
            return f"[{', '.join([*prefix, self.shape(rest, f'{path}[]', seen)])}, ...]"
        return _ANY

    def _choice(self, schema: Mapping[str, Any], options: list[Any], path: str, seen: tuple[str, ...]) -> str:
        """Return the shapes of the options; null is said in words."""
        others = [option for option in options if not (isinstance(option, Mapping) and option.get("type") == "null")]
        told = _told(schema)
        if len(others) < len(options):
            self._say(path, "may be null", None)
        shapes = [
            self.shape({**told, **option} if len(others) == 1 and isinstance(option, Mapping) else option, path, seen)
            for option in others
        ]
        if len(others) > 1:
            self._say(path, "", schema.get("description"))
        return " or ".join(dict.fromkeys(shapes)) or "null"

    def _say(self, path: str, kind: str, about: Any) -> None:
        name = path.lstrip(".") or "The answer"
        said = f"{name} {kind}" if kind else name
        if about:
            said += f": {' '.join(str(about).split()).rstrip('.')}"
        if (kind or about) and f"{said}." not in self.lines:
            self.lines.append(f"{said}.")


def _told(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {name: schema[name] for name in ("description",) if name in schema}


def _kind(schema: Mapping[str, Any]) -> str:
    """Return what the shape doesn't show of a value, empty if there is nothing to say."""
    if TYPE_HINT in schema:
        return "is a " + next(words for hint, words in _HINTED.items() if schema[TYPE_HINT].startswith(hint))
    if "enum" in schema:
        return f"is one of {', '.join(map(_plain, schema['enum'][:_MOST_VALUES]))}"
    kind, low, high = schema.get("type"), schema.get("minimum"), schema.get("maximum")
    if kind == "boolean":
        return "is true or false"
    if kind in ("integer", "number"):
        return f"is a{'n' * (kind == 'integer')} {kind}" + (
            f" from {low} to {high}" if low is not None and high is not None else ""
        )
    if kind == "array":
        least, most = schema.get("minItems"), schema.get("maxItems")
        if most is None or "prefixItems" in schema:
            return ""
        return f"has {most} entries" if least == most else f"has at most {most} entries"
    if kind != "string":
        return ""
    if "format" in schema:
        return f"is {_FORMATS.get(schema['format'], 'a ' + schema['format'])}"
    if "pattern" in schema:
        return f"matches {schema['pattern']}" if len(schema["pattern"]) <= 60 else ""
    return f"has at most {schema['maxLength']} characters" if "maxLength" in schema else ""


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
