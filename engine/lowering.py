"""From a JSON Schema to one that xgrammar enforces to the letter.

xgrammar 0.2 reads one keyword of a schema and drops its siblings: beside ``$ref``, ``const``, ``enum``, ``anyOf``,
``oneOf`` or ``allOf`` everything else, of several branches of ``allOf`` all, beside ``format`` the ``pattern``, beside
``pattern`` the lengths; it says so in its log at most. Here a schema is rewritten so that nothing is beside each other:
references and ``allOf`` are taken apart and joined, what stands beside a choice goes into each of its branches, values
of an ``enum`` are checked against what stands beside it.

The result accepts only what the schema accepts. It may accept less where a grammar can't say it: keys come in the
schema's order, an object has no other keys than those named unless it allows them outright, a type-less schema with
keywords of one type has that type. What can be said in no way is a finding.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from daft_vllm.engine.conjunction import ANNOTATIONS, Flat, conjoined, normalised
from daft_vllm.engine.emission import NEVER, Emitter, Finding, Node
from daft_vllm.engine.references import resolve
from daft_vllm.errors import SchemaError

_MOST_BRANCHES = 256
_DEEPEST = 200


class Lowered(NamedTuple):
    """A schema for xgrammar, and what it leaves unsaid. ``schema`` is None where no value satisfies the original."""

    schema: Node | None
    findings: list[Finding]


def lower(schema: Mapping[str, Any] | bool) -> Lowered:
    """Rewrite a schema (draft 2020-12; spellings of older drafts are understood).

    Raises:
        SchemaError: a reference leads nowhere or out of the document, or choices multiply beyond all measure.
    """
    lowering = _Lowering(schema)
    root = lowering.lower(schema, "")
    if root is NEVER:
        return Lowered(None, lowering.findings)
    return Lowered(lowering.with_definitions(root), lowering.findings)


@functools.lru_cache(maxsize=64)
def enforceable(json_schema: str) -> str:
    """Return the text of the lowered schema, from the text of a schema.

    Raises:
        SchemaError: the schema says what no grammar enforces, or nothing satisfies it; and as ``lower`` does.
    """
    schema, findings = lower(json.loads(json_schema))
    if findings:
        listed = "\n".join(f"  {finding}" for finding in findings)
        raise SchemaError(f"the schema says what can't be enforced while an answer is written:\n{listed}")
    if schema is None:
        raise SchemaError("no value satisfies the schema: two of its parts contradict each other.")
    return json.dumps(schema)


class _Lowering(Emitter):
    """One run.

    A schema that is met while it is being lowered is recursive: it becomes a definition. Schemas are known by their
    text, because joined ones have no place of their own in the document.
    """

    def __init__(self, root: Any) -> None:
        super().__init__(root)
        self._root = root
        self._known: dict[str, Node] = {}
        self._names: dict[str, str] = {}
        self._definitions: dict[str, Node] = {}
        self._depth = 0

    @property
    def findings(self) -> list[Finding]:
        return list(self._found.values())

    def with_definitions(self, root: Node) -> Node:
        """Return the root with the definitions that it needs."""
        return {**root, "$defs": self._definitions} if self._definitions else root

    def lower(self, schema: Any, pointer: str) -> Node:
        """Return the lowered schema, or ``NEVER``."""
        if schema is True or schema == {}:
            return {}
        if schema is False:
            return NEVER
        key = json.dumps(schema, sort_keys=True)
        if key in self._names:  # it holds itself
            return {"$ref": f"#/$defs/{self._names[key]}"}
        if key in self._known:
            return self._known[key]
        if self._depth > _DEEPEST:
            raise SchemaError(f"the schema at {pointer or '/'} is nested too deeply to be enforced.")
        self._depth += 1
        self._names[key] = f"d{len(self._known) + len(self._names)}"
        try:
            lowered = self._lower(schema, pointer)
        finally:
            name = self._names.pop(key)
            self._depth -= 1
        if lowered is not NEVER and f'"#/$defs/{name}"' in json.dumps(lowered) + json.dumps(self._definitions):
            self._definitions[name] = lowered
            lowered = {"$ref": f"#/$defs/{name}"}
        self._known[key] = lowered
        return lowered

    def _lower(self, schema: Mapping[str, Any], pointer: str) -> Node:
        said = set(schema) - ANNOTATIONS
        if said == {"$ref"}:
            return self.lower(resolve(schema["$ref"], self._root), pointer)
        branches = self._branches(schema, pointer, ())
        return self._choice([lowered for flat in branches for lowered in self._of_types(flat, pointer)])

    # Taking apart.

    def _branches(self, schema: Any, pointer: str, seen: tuple[str, ...]) -> list[Flat]:
        """Return flat schemas of which a value satisfies at least one: references resolved, choices multiplied out."""
        if schema is True:
            return [{}]
        if schema is False:
            return []
        flat = normalised(schema)
        groups: list[list[Flat]] = []
        reference = flat.pop("$ref", None)
        if reference is not None:
            if reference in seen:
                raise SchemaError(f"the schema at {pointer or '/'} refers to itself without end, by {reference!r}.")
            groups.append(self._branches(resolve(reference, self._root), pointer, (*seen, reference)))
        for keyword in ("$dynamicRef", "$recursiveRef"):
            if flat.pop(keyword, None) is not None:
                self._find(pointer, keyword, "xgrammar doesn't follow it", "Write $ref")
        for index, part in enumerate(flat.pop("allOf", ())):
            groups.append(self._branches(part, f"{pointer}/allOf/{index}", seen))
        any_of = flat.pop("anyOf", None)
        if any_of is not None:
            groups.append(self._any_of(any_of, f"{pointer}/anyOf", seen))
        one_of = flat.pop("oneOf", None)
        if one_of is not None:
            groups.append(self._one_of(one_of, pointer, seen))
        for name, needed in flat.pop("dependentRequired", {}).items():
            groups.append([{"properties": {name: False}}, {"required": [name, *needed]}])
        for name, needed in flat.pop("dependentSchemas", {}).items():
            with_it = self._branches({"allOf": [{"required": [name]}, needed]}, f"{pointer}/dependentSchemas", seen)
            groups.append([{"properties": {name: False}}, *with_it])
        if math.prod(len(group) for group in groups) > _MOST_BRANCHES:
            raise SchemaError(
                f"the choices (anyOf, oneOf) at {pointer or '/'} multiply to more than {_MOST_BRANCHES}: "
                "write fewer, or one after the other in properties of their own."
            )
        joined: list[Flat] = []
        for parts in itertools.product(*groups):
            whole = flat
            for part in parts:
                whole = conjoined(whole, part)
            joined.append(whole)
        return joined

    def _any_of(self, options: list[Any], pointer: str, seen: tuple[str, ...]) -> list[Flat]:
        branches = []
        for index, option in enumerate(options):
            branches += self._branches(option, f"{pointer}/{index}", seen)
        return branches

    def _one_of(self, options: list[Any], pointer: str, seen: tuple[str, ...]) -> list[Flat]:
        """Return branches no two of which have a value in common, if that can be had."""
        said = [self._branches(option, f"{pointer}/oneOf/{i}", seen) for i, option in enumerate(options)]
        mine = [list(group) for group in said]
        for i, j in itertools.permutations(range(len(said)), 2):
            for place, other in itertools.product(range(len(mine[i])), said[j]):
                if self._overlap(mine[i][place], other, pointer):
                    mine[i][place] = _without_a_need_of(mine[i][place], other)
                    if self._overlap(mine[i][place], other, pointer):
                        self._find(
                            pointer,
                            "oneOf",
                            f"a value can satisfy branches {i} and {j} at once, which a grammar can't exclude",
                            "Write anyOf, or give each branch a required property with a const of its own",
                        )
        return [branch for group in mine for branch in group]

    def _overlap(self, a: Flat, b: Flat, pointer: str) -> bool:
        """Whether a value may satisfy both."""
        self._quiet += 1
        try:
            return any(lowered is not NEVER for lowered in self._of_types(conjoined(a, b), pointer))
        finally:
            self._quiet -= 1

    def _choice(self, options: list[Node]) -> Node:
        distinct: list[Node] = []
        for option in options:
            if option is not NEVER and option not in distinct:
                distinct.append(option)
        if not distinct:
            return NEVER
        return distinct[0] if len(distinct) == 1 else {"anyOf": distinct}


def _without_a_need_of(one: Flat, other: Flat) -> Flat:
    """Return ``one`` without a key that ``other`` needs and ``one`` doesn't, so that no value satisfies both."""
    for name in other.get("required", ()):
        if name not in one.get("required", ()):
            return conjoined(one, {"type": ["object"], "properties": {name: False}})
    return one
