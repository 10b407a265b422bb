"""Turns parsed JSON, or a value of Python's types, into a value for a Daft column of a given type."""

from __future__ import annotations

import datetime
import decimal
import enum
import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import pydantic_core
from daft import DataType
from pydantic import TypeAdapter

Convert = Callable[[Any], Any]

_INT_BITS = {DataType.int8(): 7, DataType.int16(): 15, DataType.int32(): 31, DataType.int64(): 63}
_FROM_TEXT: dict[str, Convert] = {
    "date": TypeAdapter(datetime.date).validate_python,
    "time": TypeAdapter(datetime.time).validate_python,
    "timestamp": TypeAdapter(datetime.datetime).validate_python,
    "duration": TypeAdapter(datetime.timedelta).validate_python,
}


def column_converter(dtype: DataType, json_text: Collection[str] = (), pointer: str = "") -> Convert:
    """Return the function that converts values for a column of ``dtype``.

    It takes parsed JSON, or what ``plain_value`` returns for a validated value. It raises ``ValueError``, ``TypeError``
    or ``ArithmeticError`` for a value that the column can't hold: it has a field that the column hasn't, an integer has
    more bits than the column, a number is too large for a double, a text is not a date or time, or a decimal has more
    digits than the column.

    Args:
        dtype: the column's type.
        json_text: JSON pointers of the parts that are JSON text in the column, see ``column_type_and_json``.
        pointer: where the values are.
    """
    convert = _converter(dtype, json_text, pointer)
    return lambda value: None if value is None else convert(_without_enum(value))


def _converter(dtype: DataType, json_text: Collection[str], pointer: str) -> Convert:
    if (pointer or "/") in json_text:
        return json_text_of
    if dtype.is_struct():
        fields = {name: column_converter(one, json_text, f"{pointer}/{name}") for name, one in dtype.fields.items()}
        return lambda value: _struct(value, fields)
    if dtype.is_map():
        item = column_converter(dtype.value_type, json_text, f"{pointer}/*")
        return lambda value: [(_key(key), item(one)) for key, one in _of(Mapping, value).items()]
    if dtype.is_list() or dtype.is_fixed_size_list():
        item = column_converter(dtype.dtype, json_text, f"{pointer}/*")
        return lambda value: [item(one) for one in _of(Iterable, value)]
    if dtype.is_string():
        return _text
    if dtype.is_binary():
        return lambda value: value if isinstance(value, bytes) else str(value).encode()
    if dtype.is_integer():
        return lambda value: _integer(value, dtype)
    if dtype.is_float32() or dtype.is_float64():
        return _number
    if dtype.is_boolean():
        return _boolean
    if dtype.is_decimal128():
        return lambda value: _decimal(value, dtype)
    for name, read in _FROM_TEXT.items():
        if getattr(dtype, f"is_{name}")():
            return lambda value: _moment(read(value), dtype)
    return lambda value: value


def json_text_of(value: Any) -> str:
    """Return JSON text. Bytes are text in UTF-8, else in base64.

    Raises:
        ValueError: JSON has no form for the value, or for a part of it.
    """
    try:
        plain = pydantic_core.to_jsonable_python(value, by_alias=True)
    except pydantic_core.PydanticSerializationError:
        plain = pydantic_core.to_jsonable_python(value, by_alias=True, bytes_mode="base64")
    return json.dumps(plain, ensure_ascii=False, allow_nan=False)


def _without_enum(value: Any) -> Any:
    """Return the value of an enum's member."""
    return value.value if isinstance(value, enum.Enum) else value


def _struct(value: Any, fields: Mapping[str, Convert]) -> dict[str, Any]:
    if isinstance(value, list | tuple):  # a tuple is an array in JSON
        if len(value) > len(fields):
            raise ValueError(f"an array of {len(value)} items doesn't fit a column of {len(fields)} fields")
        missing = [None] * (len(fields) - len(value))
        value = dict(zip(fields, (*value, *missing), strict=True))
    unknown = [name for name in _of(Mapping, value) if name not in fields]
    if unknown:
        raise ValueError(f"the column has no field {unknown[0]!r}")
    return {name: convert(value.get(name)) for name, convert in fields.items()}


def _of(kind: type[Any], value: Any) -> Any:
    if not isinstance(value, kind) or isinstance(value, str | bytes):
        raise TypeError(f"the column can't hold a {type(value).__name__} here")
    return value


def _key(key: Any) -> str:
    """Return the key of a map as JSON writes it."""
    return key if isinstance(key, str) else str(next(iter(pydantic_core.to_jsonable_python({key: None}))))


def _text(value: Any) -> str:
    """Return a text. What has another type in Python, a UUID for example, is written as in JSON."""
    if isinstance(value, str):
        return str(value)
    plain = pydantic_core.to_jsonable_python(value)
    return plain if isinstance(plain, str) else json_text_of(plain)


def _integer(value: Any, dtype: DataType) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"an integer column can't hold a {type(value).__name__}")
    bits = _INT_BITS.get(dtype, 63)
    if not -(2**bits) <= value < 2**bits:
        raise OverflowError(f"{str(value)[:40]} has more than {bits + 1} bits, which an integer column can't hold")
    return value


def _number(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"a column of numbers can't hold a {type(value).__name__}")
    number = float(value)
    if not math.isfinite(number):
        raise OverflowError("a number is beyond what a double holds")
    return number


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"a column of booleans can't hold a {type(value).__name__}")
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
