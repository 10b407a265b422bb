"""Reads JSON lines and JSON arrays without losing what a row says.

Daft takes names and types from the first rows. A later value of another type is null then, a later name is left out,
and texts that look like times lose what their first ones have not. So the types are taken from all rows here.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

import daft
import pyarrow as pa
from daft import DataFrame, DataType

from daft_vllm.errors import OptionError
from daft_vllm.tables.delimited import not_in_utf8

_EXACT = 2**53
"""Whole numbers below it are exact as float64."""


def read_json_lines(paths: Sequence[str], patterns: Sequence[str]) -> DataFrame:
    """Return the table in local files of JSON lines, or of one JSON array each.

    Args:
        paths: the files.
        patterns: the same as globs, in which special characters are escaped.

    Raises:
        OptionError: a file is empty or can't be read, or a column has values of kinds that no type holds. The message
            has the line.
    """
    seen, kept = _Values(), []
    # Daft reads arrays otherwise than lines: "2024-01-01" becomes "2024-1-1", and an empty list null.
    has_array = any(map(_is_array, paths))
    for path in paths:
        empty = True
        for place, row in _rows(path):
            seen.add(row, f"{place} of {path}")
            empty = False
            if has_array:
                kept.append(row)
        if empty:
            raise OptionError(f"{path} is empty.")
    dtype = seen.dtype("")
    if not dtype.fields:
        raise OptionError(f"the objects in {paths[0]} are empty: there are no columns.")
    if has_array:
        schema = pa.schema([(name, one.to_arrow_dtype()) for name, one in dtype.fields.items()])
        return daft.from_arrow(pa.Table.from_pylist([_as(row, dtype) for row in kept], schema=schema))
    return daft.read_json(list(patterns), infer_schema=False, schema=dtype.fields)


def _is_array(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(4096).lstrip().startswith(b"[")


def _as(value: Any, dtype: DataType) -> Any:
    """Return a value as a column of this type holds it."""
    if isinstance(value, dict):
        return {name: _as(value.get(name), one) for name, one in dtype.fields.items()}
    if isinstance(value, list):
        return [_as(one, dtype.dtype) for one in value]
    is_text = value is None or isinstance(value, str) or not dtype.is_string()
    return value if is_text else json.dumps(value)


def _rows(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each object of a file, and where it is."""
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if number == 1 and line.startswith("\ufeff"):
                    raise OptionError(
                        f"{path} begins with a byte order mark: delete it, for example with "
                        f"sed -i '1s/^\\xEF\\xBB\\xBF//' {shlex.quote(path)}."
                    )
                if number == 1 and line.lstrip().startswith("["):
                    yield from _array(path, line + file.read())
                    return
                if not line.strip():
                    raise OptionError(
                        f"line {number} of {path} is blank: delete it, for example with "
                        f"sed -i '/^\\s*$/d' {shlex.quote(path)}."
                    )
                yield f"line {number}", _object(line, f"line {number} of {path}", path)
    except UnicodeDecodeError:
        raise OptionError(not_in_utf8(path)) from None


def _array(path: str, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    rows = _value(text, path)
    for number, row in enumerate(rows if isinstance(rows, list) else [rows], 1):
        if not isinstance(row, dict):
            raise OptionError(f"item {number} of {path} is no JSON object: write objects, [{{...}}, {{...}}].")
        yield f"item {number}", row


def _object(line: str, place: str, path: str) -> dict[str, Any]:
    if line.strip() == "{":
        raise OptionError(
            f"{place} has an object of several lines: write each object on a line of its own, for example with "
            f"jq -c . {shlex.quote(path)}."
        )
    value = _value(line.rstrip(), place)
    if not isinstance(value, dict):
        raise OptionError(f"{place} holds no JSON object.")
    return value


def _value(text: str, place: str) -> Any:
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as e:
        at = f"column {e.colno}" if e.lineno == 1 else f"line {e.lineno}, column {e.colno}"
        raise OptionError(f"{place} can't be read: {e.msg[0].lower()}{e.msg[1:]}, at {at}.") from None
    except (ValueError, RecursionError) as e:
        raise OptionError(f"{place} can't be read: {e}.") from None
    if "\\ud" in text or "\\uD" in text:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise OptionError(f"{place} has half of a surrogate pair, which is no character: delete it.") from None
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON: write null")


class _Values:
    """The values seen in one place of the rows: a column, a field in it, or the items of a list.

    Attributes:
        first: for each kind of value, where the first one is.
        fields: the fields of the objects.
        items: the items of the lists.
        low: the lowest whole number, and ``high`` the highest.
    """

    __slots__ = ("fields", "first", "high", "items", "low")

    def __init__(self) -> None:
        self.first: dict[type, str] = {}
        self.fields: dict[str, _Values] = {}
        self.items: _Values | None = None
        self.low = self.high = 0

    def add(self, value: Any, place: str) -> None:
        """Take one more value, which is at ``place``."""
        if value is None:
            return
        kind = type(value)
        self.first.setdefault(kind, place)
        if kind is dict:
            for name, one in value.items():
                field = self.fields.get(name)
                if field is None:
                    field = self.fields[name] = _Values()
                field.add(one, place)
        elif kind is list:
            self.items = self.items or _Values()
            for one in value:
                self.items.add(one, place)
        elif kind is int:
            if not -(2**63) <= value < 2**64:
                raise OptionError(f"{place} has the number {value}, too large for a column: write it as a text.")
            self.low, self.high = min(self.low, value), max(self.high, value)
        elif kind is float and value in (float("inf"), float("-inf")):
            raise OptionError(f"{place} has a number too large for a column: write it as a text.")

    def dtype(self, name: str) -> DataType:
        """Return the type of all values. Numbers and booleans beside texts become texts.

        Raises:
            OptionError: some are objects or lists, and others aren't.
        """
        if len(self.first) > 1 and (dict in self.first or list in self.first):
            (one, here), (other, there) = list(self.first.items())[:2]
            raise OptionError(
                f"{name[1:]!r} is {_WORDS[one]} in {here}, and {_WORDS[other]} in {there}: write one kind of value."
            )
        if dict in self.first:
            struct: DataType = DataType.struct({key: one.dtype(f"{name}.{key}") for key, one in self.fields.items()})
            return struct
        if self.items is not None:
            items = self.items.dtype(f"{name}[]")
            # Daft reads an empty list of nulls as null.
            made: DataType = DataType.list(DataType.string() if items.is_null() else items)
            return made
        return self._plain(set(self.first))

    def _plain(self, kinds: set[type]) -> DataType:
        if not kinds:
            return DataType.null()
        if kinds == {bool}:
            return DataType.bool()
        if kinds == {int}:
            if self.high < 2**63:
                return DataType.int64()
            return DataType.uint64() if self.low >= 0 else DataType.string()
        if kinds <= {int, float} and self.low >= -_EXACT and self.high <= _EXACT:
            return DataType.float64()
        return DataType.string()


_WORDS = {dict: "an object", list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number"}
