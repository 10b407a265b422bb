"""Turns a JSON Schema into the type of a Daft column."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from daft import DataType

from daft_vllm.engine.constraints.limits.extent import MOST_LEVELS, too_deep
from daft_vllm.engine.constraints.references import References
from daft_vllm.errors import SchemaError
from daft_vllm.udf.answers.type_schema import NAMES_HINT, TYPE_HINT

Schema = Mapping[str, Any]

_MOST_PARTS = 20_000
"""The most parts of a column's type. Daft takes a quarter of a second for a struct of 20,000 fields."""

_SCALARS: dict[str, DataType] = {
    "string": DataType.string(),
    "integer": DataType.int64(),
    "number": DataType.float64(),
    "boolean": DataType.bool(),
    "null": DataType.null(),
}
_FORMATS: dict[str, DataType] = {"date": DataType.date(), "date-time": DataType.timestamp("us", "UTC")}
_HINTED: dict[str, DataType] = {
    "timestamp": DataType.timestamp("us"),
    "time": DataType.time("us"),
    "duration": DataType.duration("us"),
    "binary": DataType.binary(),
}


def column_type(schema: Schema) -> DataType:
    """Return the Daft type of values that satisfy ``schema``. ``column_type_and_json`` lists them."""
    return column_type_and_json(schema)[0]


def column_type_and_json(schema: Schema) -> tuple[DataType, list[str]]:
    """Return the Daft type of values that satisfy ``schema``, and the JSON pointers of the parts that stay JSON text.

    ============================================  ==================================================================
    JSON Schema                                   Daft
    ============================================  ==================================================================
    ``string``                                    string; ``format`` ``date``: date, ``date-time``: timestamp in UTC
    ``integer``, ``number``, ``boolean``          int64, float64, bool
    ``object`` with ``properties``                struct, unless ``additionalProperties`` allows other fields
    ``object`` with ``additionalProperties``      map from string, if it is a schema with a type of its own
    ``array`` with ``items``                      list, also where ``minItems`` = ``maxItems``
    ``array`` with ``prefixItems`` alone          struct of ``_0``, ``_1``, ... or of a ``NamedTuple``'s names
    a type or ``null``                            that type: every column takes nulls
    ``integer`` or ``number``                     float64
    anything else                                 string that holds JSON text
    ============================================  ==================================================================

    Examples of "anything else": objects with free keys, unions of different types, schemas that refer to themselves,
    and arrays of any items.

    Raises:
        SchemaError: a reference leads nowhere, or the type has too many parts or levels.
    """
    typing = _Typing(schema)
    return typing.type_of(schema, "", ()), list(dict.fromkeys(typing.json_text))


class _Typing:
    def __init__(self, root: Schema) -> None:
        self._references = References(root)
        self._parts = 0
        self.json_text: list[str] = []

    def type_of(self, schema: Any, pointer: str, seen: tuple[str, ...]) -> DataType:
        self._parts += 1
        if self._parts > _MOST_PARTS:
            raise SchemaError(
                f"{pointer[:200] or '/'}: the column's type has more than {_MOST_PARTS:,} parts, with the references "
                "of the schema written out. Write {} (any JSON) for a part of it: the column holds it as JSON text."
            )
        if not isinstance(schema, Mapping):
            return self._json(pointer)  # true: any JSON
        if TYPE_HINT in schema:
            return hinted_type(schema[TYPE_HINT])
        if "$ref" in schema:
            reference = schema["$ref"]
            if reference in seen:
                return self._json(pointer)  # recursive: no Daft type is deep enough
            if len(seen) > MOST_LEVELS:
                raise too_deep(pointer)
            return self.type_of(self._references.target(reference), pointer, (*seen, reference))
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                return self._union([(option, pointer) for option in schema[keyword]], pointer, seen)
        if "allOf" in schema:
            parts = schema["allOf"]
            return self.type_of(parts[0], pointer, seen) if len(parts) == 1 else self._json(pointer)
        if "const" in schema:
            return self._of_values([schema["const"]], pointer)
        if "enum" in schema:
            return self._of_values(schema["enum"], pointer)
        kind = schema.get("type")
        if isinstance(kind, list):
            return self._union([({**schema, "type": one}, pointer) for one in kind], pointer, seen)
        if kind == "object":
            return self._of_object(schema, pointer, seen)
        if kind == "array":
            return self._of_array(schema, pointer, seen)
        if kind == "string" and schema.get("format") in _FORMATS:
            return _FORMATS[schema["format"]]
        return _SCALARS[str(kind)] if str(kind) in _SCALARS else self._json(pointer)

    def _of_object(self, schema: Schema, pointer: str, seen: tuple[str, ...]) -> DataType:
        others = schema.get("additionalProperties")
        closed = others in (None, False) and "patternProperties" not in schema
        if schema.get("properties") and closed:
            fields = {
                name: self.type_of(part, f"{pointer}/{name}", seen) for name, part in schema["properties"].items()
            }
            struct: DataType = DataType.struct(fields)
            return struct
        if not schema.get("properties"):
            patterns = list(schema.get("patternProperties", {}).values())
            values = patterns[0] if len(patterns) == 1 and others is False else others if not patterns else None
            if isinstance(values, Mapping) and values:
                mapping: DataType = DataType.map(DataType.string(), self.type_of(values, f"{pointer}/*", seen))
                return mapping
        return self._json(pointer)

    def _of_array(self, schema: Schema, pointer: str, seen: tuple[str, ...]) -> DataType:
        prefix, items = schema.get("prefixItems"), schema.get("items", None)
        if prefix and (items is False or schema.get("maxItems") == len(prefix)):
            names = schema.get(NAMES_HINT) or [f"_{i}" for i in range(len(prefix))]
            pairs = zip(names, prefix, strict=True)
            struct: DataType = DataType.struct({n: self.type_of(part, f"{pointer}/{n}", seen) for n, part in pairs})
            return struct
        if not prefix and isinstance(items, Mapping):
            listed: DataType = DataType.list(self.type_of(items, f"{pointer}/*", seen))
            return listed
        return self._json(pointer)

    def _union(self, options: list[tuple[Any, str]], pointer: str, seen: tuple[str, ...]) -> DataType:
        """Return the one type that holds every option; a string of JSON if there is none."""
        before = len(self.json_text)
        distinct: list[DataType] = []
        for schema, place in options:
            option = self.type_of(schema, place, seen)
            if option != DataType.null() and option not in distinct:
                distinct.append(option)
        if not distinct:
            return DataType.null()
        if len(distinct) == 1:
            return distinct[0]
        del self.json_text[before:]
        if all(option in (DataType.int64(), DataType.float64()) for option in distinct):
            return DataType.float64()
        return self._json(pointer)

    def _of_values(self, values: list[Any], pointer: str) -> DataType:
        kinds = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
        names = dict.fromkeys(kinds.get(type(value)) for value in values)
        return self._union([({"type": name}, pointer) for name in names], pointer, ())

    def _json(self, pointer: str) -> DataType:
        self.json_text.append(pointer or "/")
        return DataType.string()


def hinted_type(hint: str) -> DataType:
    """Return the type that a ``TYPE_HINT`` names."""
    decimal = re.fullmatch(r"decimal\((\d+),(\d+)\)", hint)
    if decimal:
        exact: DataType = DataType.decimal128(int(decimal[1]), int(decimal[2]))
        return exact
    return _HINTED[hint]
