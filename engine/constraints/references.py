"""References within a JSON Schema: where they lead, and whether they come to an end."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import referencing.exceptions
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from daft_vllm.engine.constraints.finding import NEVER, Node
from daft_vllm.engine.constraints.limits.work import spend
from daft_vllm.errors import SchemaError


class References:
    """Where the references within a document lead. Each is looked up once.

    Args:
        root: the document.
    """

    def __init__(self, root: Any) -> None:
        self._resolver = Registry().resolver_with_root(DRAFT202012.create_resource(root))
        self._targets: dict[str, Any] = {}

    def target(self, reference: str) -> Any:
        """Return the part of the document that a ``$ref`` within it points to.

        Raises:
            SchemaError: the reference leaves the document or points nowhere.
        """
        if reference not in self._targets:
            try:
                self._targets[reference] = self._resolver.lookup(reference).contents
            except (referencing.exceptions.Unresolvable, LookupError, TypeError, ValueError) as e:
                inside = reference.startswith("#")
                where = "which is not there" if inside else "outside of itself: put the definition into $defs"
                raise SchemaError(f"the schema refers to {reference!r}, {where}.") from e
        return self._targets[reference]


def endless(pointer: str, reference: str) -> SchemaError:
    """Return the error for a reference that leads to itself before it leads to any value."""
    return SchemaError(f"{pointer or '/'}: $ref: the schema refers to itself without end, by {reference!r}.")


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


def without_endless(schema: Node) -> Node:
    """Return a lowered schema without the parts of which no value ends, because each contains another of its kind.

    A model that began such a part would write until it is cut off. The result is ``NEVER`` if all of it is like that.
    """
    definitions: dict[str, Any] = schema.get("$defs", {})
    if not definitions:
        return schema
    ending: set[str] = set()
    while True:  # a definition ends if its values need only definitions that end
        more = {name for name, part in definitions.items() if name not in ending and _pruned(part, ending) is not NEVER}
        if not more:
            break
        ending |= more
    root: Node = _pruned({name: part for name, part in schema.items() if name != "$defs"}, ending)
    if root is NEVER:
        return NEVER
    kept = {name: _pruned(part, ending) for name, part in definitions.items() if name in ending}
    return {**root, "$defs": kept} if kept else root


def _pruned(node: Any, ending: set[str]) -> Any:
    """Return a part of a lowered schema without what needs other definitions than ``ending``."""
    if not isinstance(node, Mapping):
        return node
    spend(1, "")
    if "$ref" in node:
        return node if node["$ref"].rsplit("/", 1)[-1] in ending else NEVER
    if "anyOf" in node:
        options = [one for one in (_pruned(option, ending) for option in node["anyOf"]) if one is not NEVER]
        return {**node, "anyOf": options} if options else NEVER
    if node.get("type") == "object":
        return _pruned_object(node, ending)
    return _pruned_array(node, ending) if node.get("type") == "array" else node


def _pruned_object(node: Mapping[str, Any], ending: set[str]) -> Any:
    changed = dict(node)
    for keyword in ("properties", "patternProperties"):
        if keyword in node:
            parts = {name: _pruned(part, ending) for name, part in node[keyword].items()}
            changed[keyword] = {name: part for name, part in parts.items() if part is not NEVER}
    if _pruned(node.get("additionalProperties", True), ending) is NEVER:
        changed["additionalProperties"] = False
    named = changed.get("properties", {})
    if any(name not in named for name in node.get("required", ()) if name in node.get("properties", {})):
        return NEVER
    open_ended = changed.get("additionalProperties", True) is not False or changed.get("patternProperties")
    if changed == node:
        return node
    if not open_ended and node.get("minProperties", 0) > len(named):
        return NEVER
    return changed if named or open_ended else {"enum": [{}]}


def _pruned_array(node: Mapping[str, Any], ending: set[str]) -> Any:
    least, prefix = node.get("minItems", 0), list(node.get("prefixItems", ()))
    kept = [_pruned(part, ending) for part in prefix]
    end = next((i for i, part in enumerate(kept) if part is NEVER), None)
    items_end = _pruned(node.get("items", True), ending) is not NEVER
    if end is None and items_end:
        items = _pruned(node.get("items", True), ending)
        return {**node, **({"prefixItems": kept} if prefix else {}), **({"items": items} if "items" in node else {})}
    most = len(prefix) if end is None else end
    if least > most:
        return NEVER
    if not most:
        return {"enum": [[]]}
    rest = {name: value for name, value in node.items() if name != "maxItems"}
    return {**rest, "prefixItems": kept[:most], "items": False}
