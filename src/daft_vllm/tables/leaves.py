"""How the values that formats have no types for are stored as text, and tensors as lists."""

from __future__ import annotations

import base64
import io
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from daft import DataType

Say = Callable[[str], None]
"""Takes what has to be said about a column, for the summary."""
PNG_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
"""Daft's numbers of the modes of 8-bit images, and their names."""
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_OUT_OF_RANGE = "<value out of range"
"""What Arrow writes for a time that no calendar has."""


def finite(array: Any, say: Say) -> Any:
    """Return numbers with null for NaN and infinity."""
    array = array.cast(pa.float32()) if array.type == pa.float16() else array
    is_finite = pc.is_finite(array)
    if pc.all(is_finite, min_count=0).as_py():
        return array
    say("NaN and infinity as null")
    return pc.if_else(is_finite, array, None)


def decimals(array: Any, say: Say) -> Any:
    """Return decimals as text, with all their digits."""
    say("decimals as text")
    return _texts(array, lambda one: format(one, "f"))


def base64_texts(array: Any, say: Say) -> Any:
    """Return bytes in base64."""
    say("bytes as base64")
    return _texts(array, lambda one: base64.b64encode(one).decode())


def times(array: Any, say: Say) -> Any:
    """Return dates, times and timestamps in ISO 8601; those with a zone in UTC."""
    say("dates and times as ISO 8601")
    zone = array.type.tz if pa.types.is_timestamp(array.type) else None
    if zone is not None:
        say("times with a zone in UTC")
        array = array.cast(pa.timestamp(array.type.unit, "UTC"))
    texts = array.cast(pa.large_string())
    if pc.any(pc.starts_with(texts, _OUT_OF_RANGE), min_count=0).as_py():
        say("times out of range as null")
        texts = pc.if_else(pc.starts_with(texts, _OUT_OF_RANGE), None, texts)
    return pc.replace_substring(texts, " ", "T", max_replacements=1)


def durations(array: Any, say: Say) -> Any:
    """Return durations in ISO 8601, in seconds."""
    say("durations as ISO 8601")
    a_second = _PER_SECOND[array.type.unit]
    return _texts(array.cast(pa.int64()), lambda one: f"{'-' if one < 0 else ''}PT{_decimal(abs(one), a_second)}S")


def intervals(array: Any, say: Say) -> Any:
    """Return intervals in ISO 8601, in months, days and seconds."""
    say("intervals as ISO 8601")
    a_second = _PER_SECOND["ns"]
    return _texts(array, lambda one: f"P{one.months}M{one.days}DT{_decimal(one.nanoseconds, a_second)}S")


def _decimal(count: int, per_second: int) -> str:
    whole, rest = divmod(abs(count), per_second)
    sign = "-" if count < 0 else ""
    fraction = str(rest).zfill(len(str(per_second)) - 1).rstrip("0") if rest else ""
    return f"{sign}{whole}.{fraction}" if fraction else f"{sign}{whole}"


def uuids(array: Any, say: Say) -> Any:
    """Return UUIDs as text."""
    return _texts(array.storage, lambda one: str(uuid.UUID(bytes=one)))


def _texts(array: Any, write: Callable[[Any], str]) -> Any:
    return pa.array([None if one is None else write(one) for one in array.to_pylist()], pa.large_string())


def tensors(shape: Sequence[int], array: Any, say: Say) -> Any:
    """Return tensors as lists of lists."""
    storage = array.storage
    made = storage.flatten()
    made = finite(made, say) if pa.types.is_floating(made.type) else made
    for size in reversed(shape[1:]):
        made = pa.FixedSizeListArray.from_arrays(made, size)
    lengths = pc.if_else(storage.is_null(), 0, shape[0])
    return pa.LargeListArray.from_arrays(ends(lengths), made, mask=storage.is_null())


def pngs(shape: Sequence[int] | None, dtype: DataType, array: Any, say: Say) -> Any:
    """Return images as PNG files in base64. ``shape``: height and width, if all images have the same."""
    from PIL import Image

    say("images as PNG in base64")
    texts: list[str | None] = []
    for one in array.storage:
        if not one.is_valid:
            texts.append(None)
            continue
        if shape is not None:
            height, width = shape[0], shape[1]
            data, mode = one.values, str(dtype.image_mode).split(".")[-1]
        else:
            height, width = one["height"].as_py(), one["width"].as_py()
            data, mode = one["data"].values, PNG_MODES[one["mode"].as_py()]
        file = io.BytesIO()
        Image.frombytes(mode, (width, height), data.to_numpy(zero_copy_only=False).tobytes()).save(file, "PNG")
        texts.append(base64.b64encode(file.getvalue()).decode())
    return pa.array(texts, pa.large_string())


def ends(lengths: Any) -> Any:
    """Return the offsets of lists of these lengths."""
    return pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths.cast(pa.int64()))])
