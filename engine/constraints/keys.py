"""Which keys objects may have, as far as a schema names them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from daft_vllm.engine.constraints.conjunction import Flat, to_flat
from daft_vllm.engine.constraints.limits.work import spend
from daft_vllm.engine.constraints.references import References

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


def keys_in(schema: Any, references: References, seen: tuple[str, ...]) -> Keys:
    """Return the keys that objects may have because of a schema and its parts. None: any key.

    Args:
        schema: the schema.
        references: where the references in it lead.
        seen: references that were followed to get here.
    """
    if not isinstance(schema, Mapping):
        return frozenset()
    spend(1, "")
    found = [keys_of(to_flat(schema))]
    if schema.get("unevaluatedProperties"):
        return None
    parts = [part for keyword in ("allOf", "anyOf", "oneOf") for part in schema.get(keyword, ())]
    parts += [schema[keyword] for keyword in ("if", "then", "else") if keyword in schema]
    parts += schema.get("dependentSchemas", {}).values()
    found += [keys_in(part, references, seen) for part in parts]
    reference = schema.get("$ref")
    if reference is not None and reference not in seen:
        found.append(keys_in(references.target(reference), references, (*seen, reference)))
    return all_keys(found)
