"""How long a lowered schema is as text, and to which definitions it refers, without writing it.

Parts of a lowered schema are shared: what comes up twice is the same object twice. As text, it would be there twice,
and with it all that it shares.
"""

from __future__ import annotations

from typing import Any, NamedTuple

MOST_WRITTEN = 1_000_000
"""The most characters of a lowered schema: xgrammar compiles 340,000 in 9 seconds, 3.3 million in minutes and 8 GB."""


class Written(NamedTuple):
    """How many characters a part has, about, and the names of the definitions that it refers to."""

    characters: int
    names: frozenset[str]


_NOTHING: frozenset[str] = frozenset()


class WrittenSizes:
    """Knows the sizes of the parts that it was told to keep, so it looks at none of them twice."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Written]] = {}  # with the part, so that its id is not used again

    def keep(self, part: Any) -> None:
        """Remember the size of a part, which is not changed any more."""
        self._known[id(part)] = part, self.of(part)

    def of(self, part: Any) -> Written:
        """Return the size of a part."""
        if id(part) in self._known:
            return self._known[id(part)][1]
        if isinstance(part, dict):
            inside = [self.of(one) for one in part.values()]
            own = 2 + sum(len(name) + 6 for name in part)
            reference = part.get("$ref")
            names = frozenset((reference.rsplit("/", 1)[-1],)) if isinstance(reference, str) else _NOTHING
            return Written(own + sum(one.characters for one in inside), names.union(*(one.names for one in inside)))
        if isinstance(part, list | tuple):
            inside = [self.of(one) for one in part]
            return Written(
                2 + 2 * len(part) + sum(one.characters for one in inside),
                _NOTHING.union(*(one.names for one in inside)),
            )
        return Written(len(part) + 2 if isinstance(part, str) else len(str(part)), _NOTHING)
