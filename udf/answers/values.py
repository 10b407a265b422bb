"""Turns parsed JSON into a value for a Daft column of a given type."""

from __future__ import annotations

import datetime
import decimal
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from daft import DataType
from pydantic import TypeAdapter

_INT_BITS = {DataType.int8(): 7, DataType.int16(): 15, DataType.int32(): 31, DataType.int64(): 63}
_FROM_TEXT: dict[str, Callable[[Any], Any]] = {
    "date": TypeAdapter(datetime.date).validate_python,
    "time": TypeAdapter(datetime.time).validate_python,
    "timestamp": TypeAdapter(datetime.datetime).validate_python,
    "duration": TypeAdapter(datetime.timedelta).validate_python,
}


def to_column_value(value: Any, dtype: DataType) -> Any:
    """Convert a parsed JSON value for a column of ``dtype``. In a string column, other values become JSON text.

    Raises:
        ValueError, OverflowError: an integer has more bits than the column, a number is too large for a double, a text
            is not a date or time, or a decimal has more digits than the column.
    """
    if value is None:
        return None
    if dtype.is_struct():
        return _struct(value, dtype)
    if dtype.is_map() and isinstance(value, Mapping):
        return [(str(key), to_column_value(item, dtype.value_type)) for key, item in value.items()]
    if (dtype.is_list() or dtype.is_fixed_size_list()) and isinstance(value, list):
        return [to_column_value(item, dtype.dtype) for item in value]
    if dtype.is_string():
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if dtype.is_binary():
        return value if isinstance(value, bytes) else str(value).encode()
    if dtype.is_integer():
        return _integer(value, dtype)
    if dtype.is_float32() or dtype.is_float64():
        return _number(value)
    if dtype.is_decimal128():
        return _decimal(value, dtype)
    for name, convert in _FROM_TEXT.items():
        if getattr(dtype, f"is_{name}")():
            return _moment(convert(value), dtype)
    return value


def _struct(value: Any, dtype: DataType) -> Any:
    if isinstance(value, list):  # a tuple is an array in JSON
        return {
            name: to_column_value(value[i] if i < len(value) else None, field)
            for i, (name, field) in enumerate(dtype.fields.items())
        }
    return {name: to_column_value(value.get(name), field) for name, field in dtype.fields.items()}


def _integer(value: Any, dtype: DataType) -> Any:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        bits = _INT_BITS.get(dtype, 63)
        if not -(2**bits) <= value < 2**bits:
            raise OverflowError(f"{str(value)[:40]} has more than {bits + 1} bits, which an integer column can't hold")
    return value


def _number(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = float(value)
        if math.isinf(value):
            raise OverflowError("a number is beyond what a double holds")
    return value


def _decimal(value: Any, dtype: DataType) -> decimal.Decimal:
    exact = decimal.Decimal(str(value))
    with decimal.localcontext(decimal.Context(prec=dtype.precision, traps=[decimal.InvalidOperation, decimal.Inexact])):
        try:
            return exact.quantize(decimal.Decimal(1).scaleb(-dtype.scale))
        except (decimal.InvalidOperation, decimal.Inexact):
            raise ValueError(f"{str(value)[:50]} has more digits than {dtype} holds") from None


def _moment(value: Any, dtype: DataType) -> Any:
    """Return a date or time in the column's form: in UTC, or without a time zone."""
    if isinstance(value, datetime.datetime) and dtype.is_timestamp():
        if dtype.timezone is None:
            return value.replace(tzinfo=None)
        return value.replace(tzinfo=datetime.UTC) if value.tzinfo is None else value.astimezone(datetime.UTC)
    return value.replace(tzinfo=None) if isinstance(value, datetime.time) else value
