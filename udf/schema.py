"""From a JSON Schema to the type of a Daft column, and from the model's JSON text to a value of that type."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from daft import DataType

from daft_vllm.engine.references import resolve

Schema = Mapping[str, Any]

_SCALARS: dict[str, DataType] = {
    "string": DataType.string(),
    "integer": DataType.int64(),
    "number": DataType.float64(),
    "boolean": DataType.bool(),
    "null": DataType.null(),
}


def column_type(schema: Schema) -> DataType:
    """Return the Daft type of values that satisfy ``schema``.

    Objects with ``properties`` become structs, arrays lists, scalars the like-named type (``integer`` is int64,
    ``number`` float64). A type joined with ``null`` is that type: every Daft type takes nulls. What Daft has no type
    for (objects with free keys, unions of unlike types, recursion, tuples) becomes a string that holds JSON.
    """
    return _type_of(schema, schema, ())


def _type_of(schema: Any, root: Schema, seen: tuple[str, ...]) -> DataType:
    if not isinstance(schema, Mapping):
        return DataType.string()  # true: any JSON
    if "$ref" in schema:
        reference = schema["$ref"]
        if reference in seen:
            return DataType.string()  # recursive: no Daft type is deep enough
        return _type_of(resolve(reference, root), root, (*seen, reference))
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema:
            return _union([_type_of(option, root, seen) for option in schema[keyword]])
    if "allOf" in schema:
        return _type_of(schema["allOf"][0], root, seen) if len(schema["allOf"]) == 1 else DataType.string()
    if "const" in schema:
        return _of_values([schema["const"]])
    if "enum" in schema:
        return _of_values(schema["enum"])
    kind = schema.get("type")
    if isinstance(kind, list):
        return _union([_type_of({**schema, "type": one}, root, seen) for one in kind])
    if kind == "object" and schema.get("properties") and not _is_open(schema):
        fields = {name: _type_of(field, root, seen) for name, field in schema["properties"].items()}
        struct: DataType = DataType.struct(fields)
        return struct
    if kind == "array" and "items" in schema and "prefixItems" not in schema:
        items: DataType = DataType.list(_type_of(schema["items"], root, seen))
        return items
    return _SCALARS.get(str(kind), DataType.string())


def _is_open(schema: Schema) -> bool:
    """Whether an object may hold keys beyond its properties, said by the schema outright."""
    return isinstance(schema.get("additionalProperties"), Mapping) or "patternProperties" in schema


def _union(options: list[DataType]) -> DataType:
    """Return the one type that holds every option; a string of JSON if there is none."""
    distinct: list[DataType] = []
    for option in options:
        if option != DataType.null() and option not in distinct:
            distinct.append(option)
    if not distinct:
        return DataType.null()
    if len(distinct) == 1:
        return distinct[0]
    if all(option in (DataType.int64(), DataType.float64()) for option in distinct):
        return DataType.float64()
    return DataType.string()


def _of_values(values: list[Any]) -> DataType:
    kinds = {bool: DataType.bool(), int: DataType.int64(), float: DataType.float64(), str: DataType.string()}
    return _union([DataType.null() if value is None else kinds.get(type(value), DataType.string()) for value in values])


def to_column_value(value: Any, dtype: DataType) -> Any:
    """Shape a parsed JSON value for a column of ``dtype``; what the type can't hold becomes JSON text.

    Raises:
        OverflowError: an integer has more than 64 bits.
    """
    if value is None:
        return None
    if dtype.is_struct() and isinstance(value, Mapping):
        return {name: to_column_value(value.get(name), field) for name, field in dtype.fields.items()}
    if dtype.is_list() and isinstance(value, list):
        return [to_column_value(item, dtype.dtype) for item in value]
    if dtype == DataType.string() and not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if dtype == DataType.float64() and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if dtype == DataType.int64() and isinstance(value, float) and value.is_integer():
        value = int(value)
    if dtype == DataType.int64() and isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise OverflowError(f"{str(value)[:40]} has more than 64 bits, which an integer column can't hold")
    return value
