"""Which answers may keep Pydantic busy for longer than anybody waits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

_FEW = 6
"""Levels at which all ways through unions inside of each other are still few."""


class ValidationRisk(NamedTuple):
    """What in a type may take Pydantic very long.

    Attributes:
        patterns: it has a pattern that Python's ``re`` searches: it is compiled, or ``regex_engine`` says so. With some
            patterns, the time doubles with each character of a text.
        unions: it has a union in a definition that refers to itself. Pydantic tries all options at each level
            of an answer: with two of them, the time doubles with each level.
    """

    patterns: bool
    unions: bool

    @classmethod
    def of(cls, core_schema: Any) -> ValidationRisk:
        """Return the risk of the type with this core schema of Pydantic's."""
        parts = list(_parts(core_schema))
        definitions = {
            one["ref"]: [*_parts(one)]
            for part in parts
            for one in part.get("definitions", ())
            if part.get("type") == "definitions"
        }
        references = {
            name: {one["schema_ref"] for one in inside if one.get("type") == "definition-ref"}
            for name, inside in definitions.items()
        }
        while ending := [name for name, needed in references.items() if not needed & references.keys()]:
            for name in ending:
                del references[name]
        patterns = [part["pattern"] for part in parts if part.get("pattern") is not None]
        python = any(part.get("regex_engine") == "python-re" for part in parts)
        return cls(
            any(python or isinstance(pattern, re.Pattern) for pattern in patterns),
            any(part.get("type") == "union" for name in references for part in definitions[name]),
        )

    def is_in(self, text: str) -> bool:
        """Whether an answer with this text may take long."""
        return self.patterns or (self.unions and text.count("{") + text.count("[") > _FEW)


def _parts(core_schema: Any) -> Iterator[Mapping[str, Any]]:
    """Return all parts of a core schema, with the configs in it."""
    pending = [core_schema]
    while pending:
        part = pending.pop()
        if isinstance(part, list | tuple):
            pending += part
        elif isinstance(part, Mapping):
            yield part
            pending += [one for name, one in part.items() if name not in ("metadata", "default", "serialization")]
