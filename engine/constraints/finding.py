"""What the lowering of a schema produces: lowered schemas, and findings about what they leave out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Node = dict[str, Any]
"""A lowered schema, or a part of one."""
NEVER: Node = {"not": {}}
"""The lowered schema that no value satisfies. It is only compared by identity."""


class Finding(NamedTuple):
    """A part of a schema that no grammar can enforce.

    Attributes:
        pointer: JSON pointer to the schema that contains it.
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


Find = Callable[[str, str, str], None]
"""Adds a finding at the place that is being lowered: keyword, reason, and what to write instead (no full stop)."""
