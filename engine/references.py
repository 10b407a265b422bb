"""References within a JSON Schema."""

from __future__ import annotations

from typing import Any

import referencing.exceptions
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from daft_vllm.errors import SchemaError


def resolve(reference: str, root: Any) -> Any:
    """Return the part of ``root`` that a ``$ref`` within it points to.

    Raises:
        SchemaError: the reference leaves the document or points nowhere.
    """
    resolver = Registry().with_resource("", DRAFT202012.create_resource(root)).resolver()
    try:
        return resolver.lookup(reference).contents
    except (referencing.exceptions.Unresolvable, LookupError, TypeError, ValueError) as e:
        where = (
            "which is not there" if reference.startswith("#") else "outside of itself: put the definition into $defs"
        )
        raise SchemaError(f"the schema refers to {reference!r}, {where}.") from e
