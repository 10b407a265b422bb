"""From a JSON Schema to one that a grammar library enforces to the letter.

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

import itertools
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from daft_vllm.engine.constraints.complement import complement, complement_of_values
from daft_vllm.engine.constraints.conjunction import ANNOTATIONS, TYPES, Flat, conjoined, normalised
from daft_vllm.engine.constraints.emission import Emitter, denormalised
from daft_vllm.engine.constraints.finding import NEVER, Finding, Node
from daft_vllm.engine.constraints.libraries import LIBRARIES
from daft_vllm.engine.constraints.libraries.base import Library
from daft_vllm.engine.constraints.references import own_documents, resolve
from daft_vllm.errors import SchemaError

_MOST_BRANCHES = 256
_MOST_OPPOSITES = 64
_DEEPEST = 200

Keys = frozenset[str] | None
"""Keys of objects. None: any."""


class Lowered(NamedTuple):
    """A schema for a grammar library.

    Attributes:
        schema: None where no value satisfies the original.
        findings: what it leaves unsaid.
        narrow: whether it refuses strings that the original accepts, for the quotes, backslashes or line ends in them.
    """

    schema: Node | None
    findings: list[Finding]
    narrow: bool = False


def lower(schema: Mapping[str, Any] | bool, library: Library = LIBRARIES["xgrammar"]) -> Lowered:
    """Rewrite a schema (draft 2020-12; spellings of older drafts are understood).

    Raises:
        SchemaError: a reference leads nowhere or out of the document, or choices multiply beyond all measure.
    """
    for pointer in own_documents(schema):
        raise SchemaError(f"{pointer}: $id: a part with an $id of its own and references isn't followed. Drop its $id.")
    lowering = _Lowering(schema, library)
    root = lowering.lower(schema, "")
    if root is NEVER:
        return Lowered(None, lowering.findings)
    return Lowered(lowering.with_definitions(root), lowering.findings, lowering.narrow)


class _Lowering(Emitter):
    """One run.

    A schema that is met while it is being lowered is recursive: it becomes a definition. Schemas are known by their
    text, because joined ones have no place of their own in the document.
    """

    def __init__(self, root: Any, library: Library) -> None:
        super().__init__(root, library)
        self._root = root
        self._known: dict[str, tuple[Node, list[Finding], bool]] = {}
        self._names: dict[str, str] = {}
        self._definitions: dict[str, Node] = {}
        self._negated: set[str] = set()
        self._inexact = 0
        self._named_by_opposites = 0  # how often the opposite of a schema spoke of keys
        self._depth = 0

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
        if key in self._names:  # it holds itself
            return {"$ref": f"#/$defs/{self._names[key]}"}
        if key in self._known:
            lowered, found, narrow = self._known[key]
            self._found += found
            self.narrow |= narrow
            return lowered
        if self._depth > _DEEPEST:
            raise SchemaError(f"{pointer or '/'}: $ref: the schema is nested too deeply to be enforced.")
        self._depth += 1
        before, narrow, self.narrow = len(self._found), self.narrow, False
        self._names[key] = f"d{len(self._known) + len(self._names)}"
        try:
            lowered = self._lower(schema, pointer)
        finally:
            name = self._names.pop(key)
            self._depth -= 1
        if lowered is not NEVER and f'"#/$defs/{name}"' in json.dumps(lowered) + json.dumps(self._definitions):
            self._definitions[name] = lowered
            lowered = {"$ref": f"#/$defs/{name}"}
        self._known[key] = lowered, self._found[before:], self.narrow
        self.narrow |= narrow
        return lowered

    def _lower(self, schema: Mapping[str, Any], pointer: str) -> Node:
        said = set(schema) - ANNOTATIONS
        if said == {"$ref"}:
            return self.lower(self._resolved(schema["$ref"], pointer), pointer)
        branches = self._branches(schema, pointer, ())
        return self._choice([lowered for flat in branches for lowered in self._of_types(flat, pointer)])

    # Taking apart.

    def _branches(self, schema: Any, pointer: str, seen: tuple[str, ...], around: Keys = frozenset()) -> list[Flat]:
        """Return flat schemas of which a value satisfies at least one: references resolved, choices multiplied out.

        Args:
            schema: the schema.
            pointer: where it stands.
            seen: references that lead here.
            around: keys that objects may have because of what else they have to satisfy. None: any.
        """
        if schema is True:
            return [{}]
        if schema is False:
            return []
        flat = normalised(schema)
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
            raise SchemaError(f"{pointer or '/'}: $ref: the schema refers to itself without end, by {reference!r}.")
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
        own = _joined([around, _keys_of(flat)])
        keys = [_joined(self._keys_in(option, seen) for option in options) for _, options, _ in parts]
        groups: list[list[Flat]] = []
        deeper = (*seen, reference) if reference is not None else seen
        for i, (keyword, options, place) in enumerate(parts):
            beside = _joined([own, *keys[:i], *keys[i + 1 :]])
            if keyword == "oneOf":
                groups.append(self._one_of(options, pointer, seen, beside))
            else:
                way = deeper if keyword == "$ref" else seen
                one_each = place.endswith("/anyOf")
                branches = (
                    self._branches(option, f"{place}/{j}" if one_each else place, way, beside)
                    for j, option in enumerate(options)
                )
                groups.append([*itertools.chain(*branches)])
        # An object that names no keys may have any.
        groups += self._negations(flat, pointer, seen, _joined([own, *keys]) or None)
        if self._named_by_opposites != named_before and rest.get("unevaluatedProperties", True) is not True:
            # A key that the opposite of a part names is not evaluated by it, and would be let in.
            self._find(
                pointer,
                "unevaluatedProperties",
                "what 'not', 'if' or 'oneOf' rule out depends on keys, so it isn't enforced beside them",
                "Name the keys in one place, with additionalProperties",
            )
        return [_with_rest(joined, rest) for joined in self._product(flat, groups, pointer)]

    def _resolved(self, reference: str, pointer: str) -> Any:
        try:
            return resolve(reference, self._root)
        except SchemaError as e:
            raise SchemaError(f"{pointer or '/'}: $ref: {e}") from None

    def _keys_in(self, schema: Any, seen: tuple[str, ...]) -> Keys:
        """Return the keys that objects may have because of a schema and all that it consists of."""
        if not isinstance(schema, Mapping):
            return frozenset()
        found = [_keys_of(normalised(schema))]
        if schema.get("unevaluatedProperties"):
            return None
        for keyword in ("allOf", "anyOf", "oneOf"):
            found += [self._keys_in(part, seen) for part in schema.get(keyword, ())]
        for keyword in ("if", "then", "else"):
            found.append(self._keys_in(schema.get(keyword), seen))
        found += [self._keys_in(part, seen) for part in schema.get("dependentSchemas", {}).values()]
        reference = schema.get("$ref")
        if reference is not None and reference not in seen:
            found.append(self._keys_in(self._resolved(reference, ""), (*seen, reference)))
        return _joined(found)

    def _product(self, flat: Flat, groups: list[list[Flat]], pointer: str) -> list[Flat]:
        """Return what satisfies ``flat`` and one of each group."""
        if math.prod(len(group) for group in groups) > _MOST_BRANCHES:
            raise SchemaError(
                f"{pointer or '/'}: anyOf: the choices (anyOf, oneOf, not, if) multiply to more than {_MOST_BRANCHES}: "
                "write fewer, or one after the other in properties of their own."
            )
        joined: list[Flat] = []
        for parts in itertools.product(*groups):
            whole = flat
            for part in parts:
                whole = conjoined(whole, part)
            joined.append(whole)
        return joined

    def _negations(self, flat: Flat, pointer: str, seen: tuple[str, ...], names: Keys) -> list[list[Flat]]:
        """Take ``not`` and ``if`` out of ``flat``, as far as what doesn't satisfy a schema can be said."""
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
            groups.append(met + [conjoined(one, other) for one in opposite for other in otherwise])
        return groups

    def _complement(self, schema: Any, pointer: str, seen: tuple[str, ...], names: Keys) -> list[Flat] | None:
        """Return flat schemas of what doesn't satisfy ``schema``, or None; see ``complement.py``."""
        key = json.dumps(schema, sort_keys=True)
        if key in self._negated:
            return None  # it holds itself
        self._negated.add(key)
        try:
            with self._on_trial():
                before = self._inexact
                branches = self._branches(schema, pointer, seen, names)
                if self._inexact != before:
                    return None  # what was left out of them would be let in
                return self._complement_of_all(branches, pointer, names)
        finally:
            self._negated.discard(key)

    def _complement_of_all(self, branches: list[Flat], pointer: str, names: Keys) -> list[Flat] | None:
        """Return flat schemas of what satisfies none of ``branches``, or None."""

        def of_part(part: Any) -> list[Any] | None:
            opposite = self._complement(part, pointer, (), None)
            return None if opposite is None else [denormalised(flat) for flat in opposite]

        found: list[Flat] = [{}]
        for flat in branches:
            opposite = complement_of_values(self._values(flat)) if "enum" in flat else complement(flat, names, of_part)
            if opposite is None or len(found) * len(opposite.schemas) > _MOST_BRANCHES:
                return None
            self._inexact += not opposite.exact
            found = [conjoined(one, other) for one in found for other in opposite.schemas]
            found = [one for one in found if one.get("type") != []]
        self._named_by_opposites += any("properties" in one for one in found)
        return found

    def _one_of(self, options: list[Any], pointer: str, seen: tuple[str, ...], names: Keys) -> list[Flat]:
        """Return branches no two of which have a value in common, if that can be had.

        Args:
            options: the branches.
            pointer: where they stand.
            seen: references that lead here.
            names: the keys that objects may have because of what stands beside. None: any.
        """
        said: list[list[Flat]] = []
        for i, option in enumerate(options):
            before = self._inexact
            said.append(self._branches(option, f"{pointer}/oneOf/{i}", seen, names))
            if self._inexact != before:  # what was left out of it isn't seen in the others' way
                self._cant_exclude(pointer, i, (i + 1) % len(options))
        mine: list[Flat] = []
        for i, group in enumerate(said):
            for flat in group:
                mine += self._apart(flat, i, said, pointer, _joined([names, _keys_of(flat)]) or None)
        if not mine and any(said):
            self._cant_exclude(pointer, 0, 1)
        return mine

    def _apart(self, flat: Flat, place: int, said: list[list[Flat]], pointer: str, names: Keys) -> list[Flat]:
        """Return what satisfies ``flat``, of branch ``place``, and none of the other branches."""
        parts = [flat]
        for j, others in enumerate(said):
            if j == place:
                continue
            in_the_way = [one for one in others if any(self._overlap(part, one, pointer, names) for part in parts)]
            if not in_the_way:
                continue
            opposite = self._complement_of_all(in_the_way, pointer, names)
            if opposite is None or len(opposite) * len(parts) > _MOST_OPPOSITES:
                self._cant_exclude(pointer, place, j)
                continue
            parts = [conjoined(part, one) for part in parts for one in opposite]
            parts = [part for part in parts if self._can_be(part, pointer)]
            if any(self._overlap(part, one, pointer, names) for part in parts for one in in_the_way):
                self._cant_exclude(pointer, place, j)
        return parts

    def _cant_exclude(self, pointer: str, i: int, j: int) -> None:
        self._find(
            pointer,
            "oneOf",
            f"a value can satisfy branches {i} and {j} at once, which a grammar can't exclude",
            "Write anyOf, or give each branch a required property with a const of its own",
        )

    def _overlap(self, a: Flat, b: Flat, pointer: str, names: Keys) -> bool:
        """Whether a value may satisfy both, if objects have no other keys than ``names``."""
        if "patternProperties" in a and "patternProperties" in b:  # joined they'd be held to more than both say
            a, b = (
                {k: one[k] for k in one if k not in ("patternProperties", "additionalProperties")} for one in (a, b)
            )
        # Without a type any will do: what stands beside may yet bring in others than those that the keywords speak of.
        both = conjoined({"type": [kind for kind in TYPES if kind != "integer"]}, conjoined(a, b))
        if names is not None:
            both = conjoined({"properties": dict.fromkeys(names, True), "additionalProperties": False}, both)
        return self._can_be(both, pointer)

    def _can_be(self, flat: Flat, pointer: str) -> bool:
        """Whether a value may satisfy ``flat``, by what it says: the keys that it doesn't name are left open."""
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


def _keys_of(flat: Flat) -> Keys:
    """Return the keys that objects of a schema may have by itself."""
    if flat.get("additionalProperties", False) is not False or flat.keys() & {"patternProperties", "propertyNames"}:
        return None
    named = {name for name, value in flat.get("properties", {}).items() if value is not False}
    return frozenset(named | set(flat.get("required", ())))


def _joined(several: Iterable[Keys]) -> Keys:
    found: frozenset[str] = frozenset()
    for keys in several:
        if keys is None:
            return None
        found |= keys
    return found


def _with_rest(flat: Flat, rest: Flat) -> Flat:
    """Return a schema with what it says of keys and items that no part of it speaks of."""
    for keyword, name in (("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")):
        if keyword in rest and name not in flat:
            flat = {**flat, name: rest[keyword]}
    return flat
