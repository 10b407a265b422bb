"""Rewrite a JSON Schema into one that a grammar library enforces exactly.

xgrammar 0.2 reads one keyword of a schema and drops the keywords beside it, at most with a line in its log:

- Beside ``$ref``, ``const``, ``enum``, ``anyOf``, ``oneOf`` or ``allOf`` it drops everything else.
- If ``allOf`` has several branches, it drops all of them.
- Beside ``format`` it drops ``pattern``, beside ``pattern`` the lengths.

Here a schema is rewritten so that these keywords stand alone. References and ``allOf`` are resolved and joined.
Keywords beside a choice are copied into each of its branches. Values of an ``enum`` are checked against the keywords
beside it.

The result accepts only what the schema accepts. It may accept less where a grammar can't express the schema: keys come
in the schema's order; an object has no other keys than those named, unless it allows them explicitly; a schema without
``type`` gets the types that its keywords belong to. What can't be expressed at all is a finding.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from daft_vllm.engine.constraints.complement import complement, complement_of_values
from daft_vllm.engine.constraints.conjunction import TYPES, Flat, intersect, is_reference, to_flat
from daft_vllm.engine.constraints.emission import Emitter, from_flat
from daft_vllm.engine.constraints.finding import NEVER, Finding, Node
from daft_vllm.engine.constraints.keys import Keys, all_keys, keys_in, keys_of
from daft_vllm.engine.constraints.libraries import LIBRARIES
from daft_vllm.engine.constraints.libraries.base import Library
from daft_vllm.engine.constraints.limits.extent import MOST_LEVELS, check_extent, too_deep
from daft_vllm.engine.constraints.limits.work import limited_work, spend
from daft_vllm.engine.constraints.limits.written import MOST_WRITTEN, WrittenSizes
from daft_vllm.engine.constraints.references import References, embedded_documents, endless, without_endless
from daft_vllm.errors import SchemaError

_MOST_BRANCHES = 256
_MOST_OPPOSITES = 64


class Lowered(NamedTuple):
    """A schema for a grammar library.

    Attributes:
        schema: None where no value satisfies the original.
        findings: parts of the original that it doesn't enforce.
        narrow: whether it refuses strings that the original accepts: those with quotes, backslashes or line ends.
    """

    schema: Node | None
    findings: list[Finding]
    narrow: bool = False


def lower(schema: Mapping[str, Any] | bool, library: Library = LIBRARIES["xgrammar"]) -> Lowered:
    """Rewrite a schema (draft 2020-12; keywords of older drafts are understood).

    Raises:
        SchemaError: a reference can't be followed (it leads nowhere, out of the document, or to itself without end, or
            is in a part with its own ``$id``), the schema is too large, nested too deeply or takes too many steps, its
            choices multiply to too many, or no value of it ends.
    """
    check_extent(schema)
    for pointer in embedded_documents(schema):
        raise SchemaError(f"{pointer}: $id: the references in a part with its own $id aren't followed. Drop this $id.")
    with limited_work():
        lowering = _Lowering(schema, library)
        root = lowering.lower(schema, "")
        if root is NEVER:
            return Lowered(None, lowering.findings)
        lowered = without_endless(lowering.with_definitions(root))
    if lowered is NEVER:
        raise SchemaError(
            "/: $ref: no value of the schema ends, because each contains another of its kind. Allow null, an empty "
            "list or a missing field at one place."
        )
    return Lowered(lowered, lowering.findings, lowering.narrow)


class _Lowering(Emitter):
    """Lowers one document.

    A schema that comes up again while it is being lowered is recursive: it becomes a definition. Schemas are identified
    by their text, because joined schemas have no place of their own in the document.
    """

    def __init__(self, root: Any, library: Library) -> None:
        super().__init__(root, library)
        self._references = References(root)
        self._known: dict[str, tuple[Node, list[Finding], bool]] = {}
        self._names: dict[str, str] = {}
        self._definitions: dict[str, Node] = {}
        self._negated: set[str] = set()
        self._inexact = 0
        self._named_by_opposites = 0  # how many opposites of schemas name keys
        self._depth = 0
        self._written = WrittenSizes()
        self._written_names: frozenset[str] = frozenset()  # those in the definitions

    @property
    def findings(self) -> list[Finding]:
        return list({(one.pointer, one.keyword): one for one in reversed(self._found)}.values())[::-1]

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
        spend(1 + len(key) // 100, pointer)
        if key in self._names:  # it contains itself
            return {"$ref": f"#/$defs/{self._names[key]}"}
        if key in self._known:
            lowered, found, narrow = self._known[key]
            self._found += found
            self.narrow |= narrow
            return lowered
        if self._depth > MOST_LEVELS:
            raise too_deep(pointer)
        deeper = not is_reference(schema)  # otherwise what it leads to counts
        self._depth += deeper
        before, narrow, self.narrow = len(self._found), self.narrow, False
        self._names[key] = f"d{len(self._known) + len(self._names)}"
        try:
            lowered = self._lower(schema, pointer)
        finally:
            name = self._names.pop(key)
            self._depth -= deeper
        written = self._written.of(lowered)
        if written.characters > MOST_WRITTEN:
            raise SchemaError(
                f"{pointer or '/'}: the schema has more than {MOST_WRITTEN:,} characters with its references and "
                "choices written out. Use fewer references or choices, or {} (any JSON) for a part of it."
            )
        if lowered is not NEVER and name in written.names | self._written_names:
            self._written_names |= written.names
            self._definitions[name] = lowered
            lowered = {"$ref": f"#/$defs/{name}"}
        self._written.keep(lowered)
        self._known[key] = lowered, self._found[before:], self.narrow
        self.narrow |= narrow
        return lowered

    def _lower(self, schema: Mapping[str, Any], pointer: str) -> Node:
        followed: list[str] = []
        while is_reference(schema):
            if schema["$ref"] in followed:
                raise endless(pointer, schema["$ref"])
            followed.append(schema["$ref"])
            if len(followed) > MOST_LEVELS:
                raise too_deep(pointer)
            schema = self._resolved(followed[-1], pointer)
        if followed:
            return self.lower(schema, pointer)
        branches = self._branches(schema, pointer, ())
        return self._choice([lowered for flat in branches for lowered in self._of_types(flat, pointer)])

    def _branches(self, schema: Any, pointer: str, seen: tuple[str, ...], around: Keys = frozenset()) -> list[Flat]:
        """Return flat schemas in place of a schema: a value has to satisfy at least one of them.

        References are resolved and choices multiplied out.

        Args:
            schema: the schema.
            pointer: where it stands.
            seen: references that were followed to get here.
            around: keys that objects may have because of other schemas that they have to satisfy. None: any key.
        """
        if schema is True:
            return [{}]
        if schema is False:
            return []
        spend(10, pointer)
        if len(seen) > MOST_LEVELS:
            raise too_deep(pointer)
        flat = to_flat(schema)
        rest: Flat = {name: flat.pop(name) for name in ("unevaluatedProperties", "unevaluatedItems") if name in flat}
        for keyword in rest:
            if flat.keys() & {"not", "conditions"}:
                self._find(pointer, keyword, "beside 'not' or 'if' it isn't enforced", "Name the keys in one place")
        if rest.get("unevaluatedProperties"):
            around = None
        for keyword in ("$dynamicRef", "$recursiveRef"):
            if flat.pop(keyword, None) is not None:
                self._find(pointer, keyword, "it isn't followed", "Write $ref")
        reference = flat.pop("$ref", None)
        if reference is not None and reference in seen:
            raise endless(pointer, reference)
        parts: list[tuple[str, list[Any], str]] = []  # keyword, options, their place
        if reference is not None:
            parts.append(("$ref", [self._resolved(reference, pointer)], pointer))
        parts += [("allOf", [part], f"{pointer}/allOf/{i}") for i, part in enumerate(flat.pop("allOf", ()))]
        parts += [(key, flat.pop(key), f"{pointer}/{key}") for key in ("anyOf", "oneOf") if key in flat]
        for name, needed in flat.pop("dependentRequired", {}).items():
            options = [{"properties": {name: False}}, {"required": [name, *needed]}]
            parts.append(("anyOf", options, f"{pointer}/dependentRequired"))
        for name, needed in flat.pop("dependentSchemas", {}).items():
            options = [{"properties": {name: False}}, {"allOf": [{"required": [name]}, needed]}]
            parts.append(("anyOf", options, f"{pointer}/dependentSchemas/{name}"))
        named_before = self._named_by_opposites
        own = all_keys([around, keys_of(flat)])
        keys = [all_keys(keys_in(option, self._references, seen) for option in options) for _, options, _ in parts]
        groups: list[list[Flat]] = []
        deeper = (*seen, reference) if reference is not None else seen
        for i, (keyword, options, place) in enumerate(parts):
            beside = all_keys([own, *keys[:i], *keys[i + 1 :]])
            if keyword == "oneOf":
                groups.append(self._one_of(options, pointer, seen, beside))
            else:
                followed = deeper if keyword == "$ref" else seen
                one_each = place.endswith("/anyOf")
                branches = (
                    self._branches(option, f"{place}/{j}" if one_each else place, followed, beside)
                    for j, option in enumerate(options)
                )
                groups.append([*itertools.chain(*branches)])
        # An object that names no keys may have any key.
        groups += self._negations(flat, pointer, seen, all_keys([own, *keys]) or None)
        if self._named_by_opposites != named_before and rest.get("unevaluatedProperties", True) is not True:
            # A key that only the opposite of a part names is still unevaluated, but would be allowed here.
            self._find(
                pointer,
                "unevaluatedProperties",
                "it isn't enforced beside 'not', 'if' or 'oneOf' that exclude values by their keys",
                "Name the keys in one place, with additionalProperties",
            )
        return [_with_rest(joined, rest) for joined in self._product(flat, groups, pointer)]

    def _resolved(self, reference: str, pointer: str) -> Any:
        try:
            return self._references.target(reference)
        except SchemaError as e:
            raise SchemaError(f"{pointer or '/'}: $ref: {e}") from None

    def _product(self, flat: Flat, groups: list[list[Flat]], pointer: str) -> list[Flat]:
        """Return ``flat`` joined with one schema of each group, in every combination."""
        if math.prod(len(group) for group in groups) > _MOST_BRANCHES:
            raise SchemaError(
                f"{pointer or '/'}: anyOf: the choices (anyOf, oneOf, not, if) multiply to more than {_MOST_BRANCHES}: "
                "write fewer, or put each into a property of its own."
            )
        return [functools.reduce(intersect, parts, flat) for parts in itertools.product(*groups)]

    def _negations(self, flat: Flat, pointer: str, seen: tuple[str, ...], names: Keys) -> list[list[Flat]]:
        """Take ``not`` and ``if`` out of ``flat``, and return them as groups, where their opposite can be written."""
        groups: list[list[Flat]] = []
        for forbidden in flat.pop("not", ()):
            opposite = self._complement(forbidden, pointer, seen, names)
            if opposite is None or len(opposite) > _MOST_OPPOSITES:
                flat["not"] = [*flat.get("not", ()), forbidden]
            else:
                groups.append(opposite)
        for condition in flat.pop("conditions", ()):
            opposite = self._complement(condition["if"], pointer, seen, names)
            if opposite is None or len(opposite) > _MOST_OPPOSITES:
                flat["conditions"] = [*flat.get("conditions", ()), condition]
                continue
            both = {"allOf": [condition["if"], condition.get("then", True)]}
            met = self._branches(both, f"{pointer}/then", seen, names)
            otherwise = self._branches(condition.get("else", True), f"{pointer}/else", seen, names)
            groups.append(met + [intersect(one, other) for one in opposite for other in otherwise])
        return groups

    def _complement(self, schema: Any, pointer: str, seen: tuple[str, ...], names: Keys) -> list[Flat] | None:
        """Return the opposite of ``schema`` as flat schemas, None if it can't be written (see ``complement.py``)."""
        key = json.dumps(schema, sort_keys=True)
        if key in self._negated:
            return None  # it contains itself
        self._negated.add(key)
        try:
            with self._on_trial():
                before = self._inexact
                branches = self._branches(schema, pointer, seen, names)
                if self._inexact != before:
                    return None  # branches leave out values, which the opposite would then allow
                return self._complement_of_all(branches, pointer, names)
        finally:
            self._negated.discard(key)

    def _complement_of_all(self, branches: list[Flat], pointer: str, names: Keys) -> list[Flat] | None:
        """Return flat schemas of the values that satisfy none of ``branches``, None if they can't be written."""

        def of_part(part: Any) -> list[Any] | None:
            opposite = self._complement(part, pointer, (), None)
            return None if opposite is None else [from_flat(flat) for flat in opposite]

        found: list[Flat] = [{}]
        for flat in branches:
            opposite = complement_of_values(self._values(flat)) if "enum" in flat else complement(flat, names, of_part)
            if opposite is None or len(found) * len(opposite.schemas) > _MOST_BRANCHES:
                return None
            self._inexact += not opposite.exact
            found = [intersect(one, other) for one in found for other in opposite.schemas]
            found = [one for one in found if one.get("type") != []]
        self._named_by_opposites += any("properties" in one for one in found)
        return found

    def _one_of(self, options: list[Any], pointer: str, seen: tuple[str, ...], names: Keys) -> list[Flat]:
        """Return flat schemas of the values that satisfy exactly one of ``options``, as far as that can be written.

        What a grammar can't exclude becomes a finding.

        Args:
            options: the branches of ``oneOf``.
            pointer: where it stands.
            seen: references that were followed to get here.
            names: keys that objects may have because of the keywords beside ``oneOf``. None: any key.
        """
        groups: list[list[Flat]] = []
        for i, option in enumerate(options):
            before = self._inexact
            groups.append(self._branches(option, f"{pointer}/oneOf/{i}", seen, names))
            if self._inexact != before:  # it leaves out values, and an overlap in these isn't found
                self._report_overlap(pointer, i, (i + 1) % len(options))
        disjoint: list[Flat] = []
        for i, group in enumerate(groups):
            for flat in group:
                disjoint += self._without_others(flat, i, groups, pointer, all_keys([names, keys_of(flat)]) or None)
        if not disjoint and any(groups):
            self._report_overlap(pointer, 0, 1)
        return disjoint

    def _without_others(
        self, flat: Flat, place: int, groups: list[list[Flat]], pointer: str, names: Keys
    ) -> list[Flat]:
        """Return flat schemas of the values that satisfy ``flat``, of group ``place``, and none of the other groups."""
        parts = [flat]
        for j, others in enumerate(groups):
            if j == place:
                continue
            overlapping = [one for one in others if any(self._overlap(part, one, pointer, names) for part in parts)]
            if not overlapping:
                continue
            opposite = self._complement_of_all(overlapping, pointer, names)
            if opposite is None or len(opposite) * len(parts) > _MOST_OPPOSITES:
                self._report_overlap(pointer, place, j)
                continue
            parts = [intersect(part, one) for part in parts for one in opposite]
            parts = [part for part in parts if self._may_be_satisfied(part, pointer)]
            if any(self._overlap(part, one, pointer, names) for part in parts for one in overlapping):
                self._report_overlap(pointer, place, j)
        return parts

    def _report_overlap(self, pointer: str, i: int, j: int) -> None:
        self._find(
            pointer,
            "oneOf",
            f"a value can satisfy branches {i} and {j} at once, which a grammar can't exclude",
            "Write anyOf, or give each branch a required property with a const of its own",
        )

    def _overlap(self, a: Flat, b: Flat, pointer: str, names: Keys) -> bool:
        """Whether a value may satisfy both, if objects have no other keys than ``names``."""
        if "patternProperties" in a and "patternProperties" in b:  # joined, they would be stricter than both
            a, b = (
                {k: one[k] for k in one if k not in ("patternProperties", "additionalProperties")} for one in (a, b)
            )
        # Without "type" every type is possible, not only those of its keywords: keywords beside it may add others.
        both = intersect({"type": [kind for kind in TYPES if kind != "integer"]}, intersect(a, b))
        if names is not None:
            both = intersect({"properties": dict.fromkeys(names, True), "additionalProperties": False}, both)
        return self._may_be_satisfied(both, pointer)

    def _may_be_satisfied(self, flat: Flat, pointer: str) -> bool:
        """Whether a value may satisfy ``flat``. Keys that it doesn't name are taken as allowed."""
        with self._on_trial():
            needed = flat.get("required", ())
            named = {
                name: value
                for name, value in flat.get("properties", {}).items()
                if name in needed or self.lower(value, pointer) is not NEVER
            }
            flat = {"additionalProperties": True, **flat, "properties": named}
            return any(lowered is not NEVER for lowered in self._of_types(flat, pointer))

    def _choice(self, options: list[Node]) -> Node:
        distinct: list[Node] = []
        for option in options:
            if option is not NEVER and option not in distinct:
                distinct.append(option)
        if not distinct:
            return NEVER
        return distinct[0] if len(distinct) == 1 else {"anyOf": distinct}


def _with_rest(flat: Flat, rest: Flat) -> Flat:
    """Return ``flat`` with the ``unevaluated`` keywords of ``rest`` as rules for additional keys and items."""
    for keyword, name in (("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")):
        if keyword in rest and name not in flat:
            flat = {**flat, name: rest[keyword]}
    return flat
