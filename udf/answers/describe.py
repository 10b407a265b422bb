"""Describes the format of the answer to the model in words, one line for each part.

Words are used because small models misread a shape given as JSON. After ``{"capital": ..., "in_europe": ...}``
SmolLM2-135M left the capital empty for 29 of 30 countries. Where a shape listed choices, it took the first one nearly
always. ``python -m benchmarks.guided.describing`` counts its right answers with these words and without them.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from daft_vllm.engine import Constraint
from daft_vllm.engine.constraints.references import References
from daft_vllm.udf.answers.type_schema import TYPE_HINT

_DEEPEST = 6
_LONGEST = 6000
"""Characters, about 1,500 tokens. If a description is longer, fewer levels of nesting are described."""
_MOST_VALUES = 80
_MOST_PARTS = 5000
"""Parts that are looked at, far more than a description of ``_LONGEST`` characters can name."""
_HINTED = {
    "timestamp": "a date and time such as 2024-05-31T13:45:00",
    "time": "a time such as 13:45:00",
    "duration": "a duration such as P1DT2H30M",
    "decimal": "a decimal number as text",
    "binary": "text",
}
_FORMATS = {"date": "a date such as 2024-05-31", "date-time": "a date and time such as 2024-05-31T13:45:00Z"}
_PLURALS = {"text": "texts", "an integer": "integers", "a number": "numbers"}


def describe(constraint: Constraint) -> str | None:
    """Return what to tell the model about its answer. None for a grammar, which says it better than words.

    The text is the same for all rows of an expression, so it is part of the prefix that they share.
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
        with contextlib.suppress(_TooLong):
            words.describe(schema, "", {"#": ""})
            if len(text := "\n".join(words.lines)) <= _LONGEST:
                return text
    return "Answer with JSON."


class _TooLong(Exception):
    """A description has more parts than anybody would read."""


@dataclass(frozen=True)
class _Part:
    """What to say about one part. ``phrase`` may be empty; ``inside`` lists arguments for ``_Words.describe``."""

    phrase: str = ""
    about: str = ""
    inside: tuple[tuple[Any, str, Mapping[str, str]], ...] = ()
    null: bool = False


class _Words:
    """The lines that describe a schema's values, outer parts before inner ones."""

    def __init__(self, root: Mapping[str, Any], deepest: int) -> None:
        self._references = References(root)
        self._deepest = deepest
        self._length = 0
        self._parts = 0
        self.lines: list[str] = []

    def describe(self, schema: Any, path: str, seen: Mapping[str, str]) -> None:
        """Add lines for the part at ``path``, then for the parts inside it.

        Args:
            schema: the part's schema.
            path: where the part is in the answer.
            seen: the references that led here, each with its path.
        """
        if path.count(".") > self._deepest or self._length > _LONGEST:
            return
        part = self._part_of(schema, path, seen)
        name = _name(path)
        if not path:
            self._add(f"Answer with {_root(part.phrase)}")
            self._add(f"{name}: {part.about}" if part.about else "")
        elif part.phrase not in ("", "text"):
            self._add(f"{name} is {part.phrase}" + (f": {part.about}" if part.about else ""))
        else:
            self._add(f"{name}: {part.about}" if part.about else "")
        self._add(f"{name} may be null" if part.null else "")
        for inside in part.inside:
            self.describe(*inside)

    def _add(self, words: str) -> None:
        if words and f"{words}." not in self.lines:
            self.lines.append(f"{words}.")
            self._length += len(words) + 2

    def _part_of(self, schema: Any, path: str, seen: Mapping[str, str]) -> _Part:
        self._parts += 1
        if self._parts > _MOST_PARTS:  # references in choices can lead to the same parts again and again
            raise _TooLong
        if not isinstance(schema, Mapping):
            return _Part()
        about = " ".join(str(schema.get("description", "")).split()).rstrip(".")
        if "$ref" in schema:
            reference = schema["$ref"]
            if reference in seen:
                return _Part(f"like {_name(seen[reference]).replace('The', 'the')}", about)
            target = self._references.target(reference)
            merged = {**target, **_description_of(schema)} if isinstance(target, Mapping) else target
            return self._part_of(merged, path, {**seen, reference: path})
        if len(schema.get("allOf", ())) == 1 and isinstance(schema["allOf"][0], Mapping):
            return self._part_of({**schema["allOf"][0], **_description_of(schema)}, path, seen)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                return self._choice(schema[keyword], about, path, seen)
        kind = schema.get("type")
        if isinstance(kind, list):
            return self._choice([{**schema, "type": one, "description": ""} for one in kind], about, path, seen)
        if kind == "object":
            return self._object(schema, about, path, seen)
        if kind == "array":
            return self._array(schema, about, path, seen)
        return _Part(_scalar(schema), about)

    def _choice(self, options: list[Any], about: str, path: str, seen: Mapping[str, str]) -> _Part:
        others = [option for option in options if not (isinstance(option, Mapping) and option.get("type") == "null")]
        null = len(others) < len(options)
        parts = [self._part_of(option, path, seen) for option in others]
        if len(parts) == 1:
            return replace(parts[0], about=about or parts[0].about, null=null)
        phrases = [f"{part.phrase} ({part.about})" if part.about else part.phrase for part in parts]
        return _Part(
            " or ".join(dict.fromkeys(phrases)) if all(phrases) else "",
            about,
            tuple(inside for part in parts for inside in part.inside),
            null or any(part.null for part in parts),
        )

    def _object(self, schema: Mapping[str, Any], about: str, path: str, seen: Mapping[str, str]) -> _Part:
        fields = schema.get("properties") or {}
        if not fields:
            values = schema.get("additionalProperties")
            if not isinstance(values, Mapping):
                return _Part("an object", about)
            return _Part("an object with keys of your choice", about, ((values, f"{path}.*", seen),))
        needed = schema.get("required", ())
        keys, inside = [], []
        for name, field in fields.items():
            fixed = isinstance(field, Mapping) and "const" in field
            notes = [f"always {_plain(field['const'])}"] if fixed else []
            notes += ["optional"] if name not in needed else []
            keys.append(json.dumps(name, ensure_ascii=False) + (f" ({', '.join(notes)})" if notes else ""))
            if not fixed or "description" in field:
                inside.append((field, f"{path}.{name}", seen))
        return _Part(f"an object with the key{'s' * (len(keys) > 1)} {', '.join(keys)}", about, tuple(inside))

    def _array(self, schema: Mapping[str, Any], about: str, path: str, seen: Mapping[str, str]) -> _Part:
        first = schema.get("prefixItems", ())
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if first:
            inside = tuple((part, f"{path}[{i}]", seen) for i, part in enumerate(first))
            return _Part(f"a list of {len(first)} entries" if least == most == len(first) else "a list", about, inside)
        entry = self._part_of(schema.get("items", True), f"{path}[]", seen)
        noun = "entries" if entry.about or entry.null else _PLURALS.get(entry.phrase, "entries")
        if most is not None:
            phrase = f"a list of {'at most ' * (least != most)}{most} {noun}"
        else:
            phrase = "a list" if noun == "entries" else f"a list of {noun}"
        return _Part(phrase, about, () if noun != "entries" else ((schema.get("items", True), f"{path}[]", seen),))


def _name(path: str) -> str:
    return path.lstrip(".") or "The answer"


def _root(phrase: str) -> str:
    for kind in ("object", "list"):
        if phrase.startswith(f"{'an' if kind == 'object' else 'a'} {kind}"):
            return f"a JSON {phrase.split(' ', 1)[1]}"
    return f"JSON: {phrase}" if phrase else "JSON"


def _description_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {name: schema[name] for name in ("description",) if name in schema}


def _scalar(schema: Mapping[str, Any]) -> str:
    if TYPE_HINT in schema:
        return next(words for hint, words in _HINTED.items() if schema[TYPE_HINT].startswith(hint))
    if "const" in schema:
        return f"always {_plain(schema['const'])}"
    if "enum" in schema:
        return f"one of {', '.join(map(_plain, schema['enum'][:_MOST_VALUES]))}"
    kind, low, high = schema.get("type"), schema.get("minimum"), schema.get("maximum")
    if kind == "boolean":
        return "true or false"
    if kind in ("integer", "number"):
        ranges = {(1, 1): f" from {low} to {high}", (1, 0): f" of at least {low}", (0, 1): f" of at most {high}"}
        return f"a{'n' * (kind == 'integer')} {kind}{ranges.get((low is not None, high is not None), '')}"
    if kind != "string":
        return ""
    if "format" in schema:
        return _FORMATS.get(schema["format"], f"a{'n' * (schema['format'][0] in 'aeio')} {schema['format']}")
    if "pattern" in schema:
        return f"text that matches {schema['pattern']}" if len(schema["pattern"]) <= 60 else "text"
    return f"text of at most {schema['maxLength']} characters" if "maxLength" in schema else "text"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
