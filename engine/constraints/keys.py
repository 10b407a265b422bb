"""Which keys objects may have, as far as a schema names them."""

from __future__ import annotations

from collections.abc import Iterable

from daft_vllm.engine.constraints.conjunction import Flat

Keys = frozenset[str] | None
"""Keys of objects. None: any."""


def keys_of(flat: Flat) -> Keys:
    """Return the keys that a schema by itself lets objects have. None: any key."""
    if flat.get("additionalProperties", False) is not False or flat.keys() & {"patternProperties", "propertyNames"}:
        return None
    named = {name for name, value in flat.get("properties", {}).items() if value is not False}
    return frozenset(named | set(flat.get("required", ())))


def all_keys(several: Iterable[Keys]) -> Keys:
    """Return the keys of all of ``several`` together. None: any key."""
    found: frozenset[str] = frozenset()
    for keys in several:
        if keys is None:
            return None
        found |= keys
    return found
