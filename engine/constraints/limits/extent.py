"""How large a schema may be: levels, parts, numbers, and groups of its patterns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from daft_vllm.errors import SchemaError

MOST_LEVELS = 64
"""The most levels of a schema, and of the references followed one after the other. A level is a list or an object in
a value, so two levels of the schema's own text, as in ``properties`` and ``name``. A recursive schema counts once."""
MOST_GROUPS = 64
"""The most groups inside each other in a pattern."""
MOST_CHARACTERS = 2_000_000
"""The most characters of a schema, and of one of its patterns a hundredth. From 2 million on, checking takes a minute.
"""
_MOST_PARTS = 500_000
_VALUES = ("enum", "const", "default", "examples")


class _Part(NamedTuple):
    """A part of a schema, and its place as a linked list of names."""

    content: Any
    level: int
    place: Any
    in_values: bool = False


def check_extent(schema: Any) -> None:
    """Raise ``SchemaError`` for a schema that is too large to work with. The message has the place and the limit.

    This doesn't follow references, and calls itself for nothing: it takes any depth.
    """
    pending = [_Part(schema, 0, None)]
    parts = characters = 0
    while pending:
        content, level, place, in_values = pending.pop()
        parts += 1
        if level > 2 * MOST_LEVELS:
            raise SchemaError(
                f"{_pointer(place)}: the schema is nested too deeply: it has more than {MOST_LEVELS} levels. Write it "
                "flatter."
            )
        if parts > _MOST_PARTS or characters > MOST_CHARACTERS:
            limit = f"{_MOST_PARTS:,} parts" if parts > _MOST_PARTS else f"{MOST_CHARACTERS:,} characters"
            raise SchemaError(
                f"{_pointer(place)}: the schema is too large: it has more than {limit}. Use a string with a pattern "
                "for many values, additionalProperties for many keys, or {} (any JSON) for a part of it."
            )
        if isinstance(content, str):
            characters += len(content) + 2
        elif isinstance(content, bool) or content is None:
            characters += 4
        elif isinstance(content, int | float):
            _check_number(content, place)
            characters += 8
        elif isinstance(content, Mapping):
            characters += 2
            for name, part in content.items():
                characters += len(name) + 4 if isinstance(name, str) else 4
                here = (place, name)
                if not in_values and name == "pattern" and isinstance(part, str):
                    check_pattern(part, _pointer(here))
                if not in_values and name == "patternProperties" and isinstance(part, Mapping):
                    for pattern in part:
                        check_pattern(str(pattern), _pointer(here))
                pending.append(_Part(part, level + 1, here, in_values or name in _VALUES))
        elif isinstance(content, list | tuple):
            pending += [_Part(part, level + 1, (place, i), in_values) for i, part in enumerate(content)]


def too_deep(pointer: str) -> SchemaError:
    """Return the error for references that lead through more than ``MOST_LEVELS`` levels."""
    return SchemaError(
        f"{pointer[:200] or '/'}: $ref: the schema is nested too deeply: it has more than {MOST_LEVELS} levels, with "
        "its references followed. Write it flatter."
    )


def check_pattern(pattern: str, place: str) -> None:
    """Raise ``SchemaError`` for a regular expression that is too large. ``place`` begins the message."""
    if len(pattern) > MOST_CHARACTERS // 100:
        raise SchemaError(
            f"{place}: the pattern {pattern[:40]!r}... has {len(pattern):,} characters: use at most "
            f"{MOST_CHARACTERS // 100:,}."
        )
    depth = 0
    in_class = escaped = False
    for i, character in enumerate(pattern):
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif in_class:
            in_class = character != "]" or pattern[i - 1] == "[" or pattern[i - 2 : i] == "[^"
        elif character == "[":
            in_class = True
        else:
            depth += (character == "(") - (character == ")")
            if depth > MOST_GROUPS:
                raise SchemaError(
                    f"{place}: the pattern {pattern[:40]!r}... has more than {MOST_GROUPS} groups inside each other: "
                    "write it flatter."
                )


def _check_number(number: float, place: Any) -> None:
    """Refuse what no double holds: 1e400 is read as infinity."""
    if isinstance(number, int):
        too_large = number.bit_length() > 1023
    else:
        too_large = number != number or number in (float("inf"), float("-inf"))
    if too_large:
        raise SchemaError(f"{_pointer(place)}: the schema has a number beyond 1e308, which is no number in JSON.")


def _pointer(place: Any) -> str:
    """Return the JSON pointer of a place. Of a long one, only the beginning."""
    names: list[str] = []
    while place is not None:
        place, name = place
        names.append(str(name).replace("~", "~0").replace("/", "~1"))
    pointer = "".join(f"/{name}" for name in reversed(names)) or "/"
    return pointer if len(pointer) <= 200 else f"{pointer[:200]}..."
