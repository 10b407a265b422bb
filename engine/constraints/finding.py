"""What the lowering of a schema produces: lowered schemas, and findings about what they leave out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Node = dict[str, Any]
"""A lowered schema, or a part of one."""
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


Find = Callable[[str, str, str], None]
"""Notes a finding at the place that is being lowered: its keyword, why, and what to write instead (no full stop)."""
