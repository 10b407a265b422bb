"""Turns a Daft type into the JSON Schema of the values in its column."""

from __future__ import annotations

import datetime
from typing import Any

from daft import DataType

from daft_vllm.engine.constraints.formats import CLOCK_PATTERN, LOCAL_DATE_TIME_PATTERN
from daft_vllm.errors import SchemaError
from daft_vllm.udf.answers.type_schema import ColumnSchema, schema_of_type

_INTEGERS = {
    DataType.int8(): (-(2**7), 2**7 - 1),
    DataType.int16(): (-(2**15), 2**15 - 1),
    DataType.int32(): (-(2**31), 2**31 - 1),
    DataType.int64(): (None, None),
    DataType.uint8(): (0, 2**8 - 1),
    DataType.uint16(): (0, 2**16 - 1),
    DataType.uint32(): (0, 2**32 - 1),
    DataType.uint64(): (0, 2**63 - 1),
}


def schema_of_daft_type(dtype: DataType, at: str = "") -> dict[str, Any]:
    """Return the JSON Schema of a type's values. Every field of a struct is required, and no value may be null.

    Raises:
        SchemaError: a model can't write values of the type (images, tensors, Python objects); the message says where.
    """
    if dtype in _INTEGERS:
        low, high = _INTEGERS[dtype]
        bounds = {"minimum": low, "maximum": high}
        return {"type": "integer", **{name: value for name, value in bounds.items() if value is not None}}
    if dtype.is_float32() or dtype.is_float64():
        return {"type": "number"}
    if dtype.is_string() or dtype.is_binary():
        return {"type": "string"}
    if dtype.is_boolean():
        return {"type": "boolean"}
    if dtype.is_date():
        return {"type": "string", "format": "date"}
    if dtype.is_timestamp():
        return {
            "type": "string",
            **({"format": "date-time"} if dtype.timezone else {"pattern": LOCAL_DATE_TIME_PATTERN}),
        }
    if dtype.is_time():
        return {"type": "string", "pattern": CLOCK_PATTERN}
    if dtype.is_duration():
        return schema_of_type(datetime.timedelta)
    if dtype.is_decimal128():
        generator = ColumnSchema()
        return generator.decimal_schema({"max_digits": dtype.precision, "decimal_places": dtype.scale})
    if dtype.is_fixed_size_list():
        return {**_list_of(dtype, at), "minItems": dtype.size, "maxItems": dtype.size}
    if dtype.is_list():
        return _list_of(dtype, at)
    if dtype.is_map():
        if not dtype.key_type.is_string():
            raise SchemaError(
                f"return_format has a map with keys of type {dtype.key_type}{_at(at)}: use strings, as JSON does."
            )
        return {"type": "object", "additionalProperties": schema_of_daft_type(dtype.value_type, f"{at}/*")}
    if dtype.is_struct():
        fields = {name: schema_of_daft_type(field, f"{at}/{name}") for name, field in dtype.fields.items()}
        return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
    raise SchemaError(
        f"return_format has the type {dtype}{_at(at)}, and a model can't write its values. Use integers, "
        "floats, strings, booleans, binaries, dates, times, timestamps, durations, decimals, lists, maps and structs."
    )


def _list_of(dtype: DataType, at: str) -> dict[str, Any]:
    return {"type": "array", "items": schema_of_daft_type(dtype.dtype, f"{at}/*")}


def _at(pointer: str) -> str:
    return f" at {pointer}" if pointer else ""


def daft_type_of(given: Any) -> DataType | None:
    """Return the Daft type that ``given`` stands for; None if it is neither a type nor a schema of Daft or Arrow."""
    import daft
    import pyarrow as pa

    if isinstance(given, DataType):
        return given
    if isinstance(given, pa.Schema):
        given = pa.struct(list(given))
    if isinstance(given, pa.DataType):
        found: DataType = DataType.from_arrow_type(given)
        return found
    if isinstance(given, daft.Schema):
        struct: DataType = DataType.struct({field.name: field.dtype for field in given})
        return struct
    return None
