"""References within a JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
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
    resolver = Registry().resolver_with_root(DRAFT202012.create_resource(root))
    try:
        return resolver.lookup(reference).contents
    except (referencing.exceptions.Unresolvable, LookupError, TypeError, ValueError) as e:
        where = (
            "which is not there" if reference.startswith("#") else "outside of itself: put the definition into $defs"
        )
        raise SchemaError(f"the schema refers to {reference!r}, {where}.") from e


def embedded_documents(schema: Any, pointer: str = "") -> Iterator[str]:
    """Return the JSON pointers of parts that contain references and are documents of their own, by an ``$id``.

    Their references are relative to the part. ``resolve`` would read them relative to the whole document.
    """
    if isinstance(schema, Mapping):
        identity = schema.get("$id")
        if pointer and isinstance(identity, str) and not identity.startswith("#") and '"$ref"' in json.dumps(schema):
            yield pointer
        for name, part in schema.items():
            if name not in ("enum", "const", "default", "examples"):
                yield from embedded_documents(part, f"{pointer}/{name}")
    elif isinstance(schema, list):
        for index, part in enumerate(schema):
            yield from embedded_documents(part, f"{pointer}/{index}")
