"""How a column of each Daft type is stored in a file of each format.

What a format has no type for is stored as text, in one of these forms, or refused before anything is computed:

- JSON lines: numbers, booleans, texts, lists and structs are JSON's own, and so are maps with text keys; other maps are
  lists of ``key`` and ``value``. NaN and infinity are null. Bytes are base64; decimals are text; dates, times and
  durations are ISO 8601, times with a zone in UTC; images are PNG files in base64; tensors are lists.
- CSV and TSV: as in JSON, but NaN and infinity are kept, and lists, structs and maps are JSON text.
- Parquet: every type is its own, except intervals (ISO 8601), structs without fields (JSON text), and what has one size
  in all rows (lists, embeddings, tensors, images): it gets the type without that size, because pyarrow can't read a
  null among them. Python objects are Daft's own pickles.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, cast

import pyarrow as pa
import pyarrow.compute as pc
from daft import DataType

from daft_vllm.errors import OptionError
from daft_vllm.tables.leaves import (
    PNG_MODES,
    Say,
    base64_texts,
    decimals,
    durations,
    ends,
    finite,
    intervals,
    pngs,
    tensors,
    times,
    uuids,
)

TableFormat = Literal["parquet", "json", "csv", "tsv"]


class Form(NamedTuple):
    """How a column is stored.

    Attributes:
        convert: makes the stored array from an array of the column, and says what a reader has to know.
        value: makes the stored value from one that ``to_pylist`` gives. None: it is that value.
    """

    convert: Callable[[Any, Say], Any]
    value: Callable[[Any], Any] | None = None


def form_of(name: str, dtype: DataType, kind: TableFormat) -> Form:
    """Return how the column ``name`` is stored in a file of this kind.

    Raises:
        OptionError: a file of this kind can't hold it. The message says what to do.
    """
    if kind == "parquet":
        return Form(_parquet(name, dtype))
    form = _json(name, dtype)
    if kind == "json":
        return form
    if dtype.is_float32() or dtype.is_float64() or dtype.is_float16():
        return Form(lambda array, say: array if array.type != pa.float16() else array.cast(pa.float32()))
    return Form(functools.partial(_json_text, form)) if _is_nested(dtype) else form


def _is_nested(dtype: DataType) -> bool:
    texts = dtype.is_image() or dtype.is_fixed_shape_image() or dtype.is_uuid()
    nested = dtype.is_list() or dtype.is_fixed_size_list() or dtype.is_struct() or dtype.is_map() or dtype.is_file()
    return not texts and bool(nested or dtype.is_logical() or dtype.is_extension()) and not _is_plain(dtype)


def _is_plain(dtype: DataType) -> bool:
    """Whether a cell is one number, text, time or the like."""
    return bool(
        dtype.is_numeric()
        or dtype.is_boolean()
        or dtype.is_string()
        or dtype.is_temporal()
        or dtype.is_time()
        or dtype.is_duration()
        or dtype.is_decimal128()
        or dtype.is_binary()
        or dtype.is_fixed_size_binary()
        or dtype.is_interval()
        or dtype.is_null()
    )


def _refused(place: str, dtype: DataType, instead: str) -> OptionError:
    return OptionError(f"the column {place!r} of type {dtype} can't be written: {instead}, or leave it out.")


# Parquet


def _parquet(place: str, dtype: DataType) -> Callable[[Any, Say], Any]:
    if dtype.is_union():
        raise _refused(place, dtype, "take a field of it")
    if dtype.is_interval():
        return intervals
    if dtype.is_python():
        return _pickles
    if dtype.is_file():
        return _files_without_settings
    if dtype.is_struct() and not dtype.fields:
        return lambda array, say: _json_text(Form(_same), array, say)
    if dtype.is_timestamp() and str(dtype.timeunit) == "s":
        return _milliseconds
    if dtype.is_fixed_shape_tensor():
        return functools.partial(_with_shape, dtype)
    if dtype.is_fixed_shape_image():
        return functools.partial(_with_size, dtype)
    children = _children(dtype)
    inner = [_parquet(f"{place}.{name}", one) for name, one in children]
    if dtype.is_fixed_size_list() or dtype.is_embedding():
        return functools.partial(_map_children, inner, keep=True)
    if all(convert is _same for convert in inner):
        return _same
    return functools.partial(_map_children, inner, keep=True)


def _pickles(array: Any, say: Say) -> Any:
    say("Python objects as pickles, which only Daft reads")
    return array


def _same(array: Any, say: Say) -> Any:
    return array


def _with_shape(dtype: DataType, array: Any, say: Say) -> Any:
    """Return tensors of one shape as tensors of any shape."""
    say("tensors with their shapes")
    storage = array.storage
    data = _map_children([_same], storage, say, keep=True)
    shape = pa.array([None if null else list(dtype.shape) for null in storage.is_null().to_pylist()])
    return _stored_as(DataType.tensor(dtype.dtype), [data, shape], storage)


def _with_size(dtype: DataType, array: Any, say: Say) -> Any:
    """Return images of one size as images of any size."""
    say("images with their sizes")
    storage = array.storage
    data = _map_children([_same], storage, say, keep=True)
    (height, width), mode = dtype.shape, dtype.image_mode
    assert mode is not None  # images of one size have one mode
    sizes = (storage.type.list_size // (height * width), height, width, int(cast("Any", mode)))
    nulls = storage.is_null().to_pylist()
    columns = [pa.array([None if null else size for null in nulls], pa.uint32()) for size in sizes]
    return _stored_as(DataType.image(mode), [data, *columns], storage)


def _stored_as(dtype: DataType, parts: Sequence[Any], storage: Any) -> Any:
    wanted = dtype.to_arrow_dtype()
    fields = list(wanted.storage_type)
    stored = [part.cast(field.type) for part, field in zip(parts, fields, strict=True)]
    return pa.ExtensionArray.from_storage(
        wanted, pa.StructArray.from_arrays(stored, fields=fields, mask=storage.is_null())
    )


def _milliseconds(array: Any, say: Say) -> Any:
    """Parquet has no times in seconds."""
    wanted = pa.timestamp("ms", array.type.tz)
    try:
        return array.cast(wanted)
    except pa.ArrowInvalid:
        say("times out of range as null")
        numbers = array.cast(pa.int64())
        fits = pc.less(pc.abs_checked(pc.if_else(pc.equal(numbers, -(2**63)), 2**62, numbers)), 2**63 // 1000)
        return pc.if_else(fits, numbers, None).cast(pa.timestamp("s", array.type.tz)).cast(wanted)


def _files_without_settings(array: Any, say: Say) -> Any:
    """Return files without Daft's settings for reading them, which may hold passwords."""
    storage = array.storage
    fields = storage.flatten()
    names = [field.name for field in storage.type]
    at = names.index("io_config")
    if fields[at].null_count < len(fields[at]):
        fields[at] = pa.array([None if url is None else b"" for url in fields[0].to_pylist()], fields[at].type)
    struct = pa.StructArray.from_arrays(fields, fields=list(storage.type), mask=storage.is_null())
    return pa.ExtensionArray.from_storage(array.type, struct)


# JSON


def _json(place: str, dtype: DataType) -> Form:
    if dtype.is_python():
        raise _refused(place, dtype, "cast it to a type of Daft")
    if dtype.is_union():
        raise _refused(place, dtype, "take a field of it")
    if dtype.is_image() or dtype.is_fixed_shape_image():
        if dtype.image_mode is not None and str(dtype.image_mode).split(".")[-1] not in PNG_MODES.values():
            raise _refused(place, dtype, 'cast it to image("RGB")')
        return Form(functools.partial(pngs, dtype.shape if dtype.is_fixed_shape_image() else None, dtype))
    leaf = _json_leaf(dtype)
    if leaf is not None:
        return Form(leaf)
    children = [(name, _json(f"{place}.{name}", one)) for name, one in _children(dtype)]
    converts = [form.convert for _, form in children]
    if dtype.is_fixed_shape_tensor():
        return Form(functools.partial(tensors, dtype.shape))
    value = _json_value(dtype, children)
    if dtype.is_struct() and not children:
        return Form(_same, value)
    return Form(functools.partial(_map_children, converts, keep=False), value)


def _json_leaf(dtype: DataType) -> Callable[[Any, Say], Any] | None:
    if dtype.is_float16() or dtype.is_float32() or dtype.is_float64():
        return finite
    if dtype.is_numeric() and not dtype.is_decimal128():
        return _same
    if dtype.is_boolean() or dtype.is_string() or dtype.is_null():
        return _same
    if dtype.is_decimal128():
        return decimals
    if dtype.is_binary() or dtype.is_fixed_size_binary():
        return base64_texts
    if dtype.is_date() or dtype.is_time() or dtype.is_timestamp():
        return times
    if dtype.is_duration():
        return durations
    if dtype.is_interval():
        return intervals
    return uuids if dtype.is_uuid() else None


def _json_value(dtype: DataType, children: Sequence[tuple[str, Form]]) -> Callable[[Any], Any] | None:
    if dtype.is_fixed_shape_sparse_tensor():
        shape = list(dtype.shape)
        return lambda cell: cell and {**cell, "shape": shape}
    inner = {name: form.value for name, form in children if form.value is not None}
    if dtype.is_map():
        has_text_keys = _is_plain(dtype.key_type) and not (dtype.key_type.is_numeric() or dtype.key_type.is_boolean())
        return functools.partial(_map_value, has_text_keys or dtype.key_type.is_decimal128(), inner)
    if not inner:
        return None
    if dtype.is_struct():
        return lambda cell: cell and {name: inner[name](one) if name in inner else one for name, one in cell.items()}
    (each,) = inner.values()
    return lambda cell: cell and [each(one) for one in cell]


def _map_value(has_text_keys: bool, inner: dict[str, Callable[[Any], Any]], cell: Any) -> Any:
    """Return a map as an object; as a list if its keys are no texts, or one of them is there twice."""
    if cell is None:
        return None
    pairs = [{name: inner[name](one) if name in inner else one for name, one in pair.items()} for pair in cell]
    found = {pair["key"]: pair["value"] for pair in pairs} if has_text_keys else {}
    return found if has_text_keys and len(found) == len(pairs) else pairs


def _json_text(form: Form, array: Any, say: Say) -> Any:
    say("as JSON text")
    cells = form.convert(array, say).to_pylist()
    if form.value is not None:
        cells = [form.value(cell) for cell in cells]
    return pa.array([None if cell is None else json_line(cell) for cell in cells], pa.large_string())


def json_line(value: Any) -> str:
    """Return strict JSON on one line."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


# Nested types


def _children(dtype: DataType) -> list[tuple[str, DataType]]:
    """Return what a type is made of, in the order of Arrow's storage of it. Plain types are made of nothing."""
    if dtype.is_struct():
        return list(dtype.fields.items())
    if dtype.is_map():
        return [("key", dtype.key_type), ("value", dtype.value_type)]
    if dtype.is_list() or dtype.is_fixed_size_list() or dtype.is_embedding():
        return [("[]", dtype.dtype)]
    if _is_plain(dtype) or dtype.is_uuid() or dtype.is_python():
        return []
    if dtype.is_image() or dtype.is_fixed_shape_image() or dtype.is_fixed_shape_tensor():
        return []
    storage = dtype.to_arrow_dtype().storage_type  # tensors, files, extensions
    if pa.types.is_struct(storage):
        return [(field.name, DataType.from_arrow_type(field.type)) for field in storage if field.name != "io_config"]
    return [("[]", DataType.from_arrow_type(storage))]


def _map_children(converts: Sequence[Callable[[Any, Say], Any]], array: Any, say: Say, *, keep: bool) -> Any:
    """Convert what a nested array is made of.

    Args:
        converts: one for each child.
        array: lists, structs, maps, or an extension stored as one of them.
        say: see ``Form``.
        keep: keep maps as maps; else they become lists of structs.
    """
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
        if not isinstance(array, pa.StructArray | pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
            return converts[0](array, say)
    if isinstance(array, pa.StructArray):
        parts = dict(zip([field.name for field in array.type], array.flatten(), strict=True))
        parts.pop("io_config", None)
        stored = [convert(part, say) for convert, part in zip(converts, parts.values(), strict=True)]
        return pa.StructArray.from_arrays(stored, names=list(parts), mask=array.is_null())
    if isinstance(array, pa.FixedSizeListArray):
        lengths = pc.fill_null(pc.list_value_length(array), 0)
        return pa.LargeListArray.from_arrays(ends(lengths), converts[0](array.flatten(), say), mask=array.is_null())
    offsets = array.offsets
    start, size = offsets[0].as_py(), offsets[-1].as_py() - offsets[0].as_py()
    offsets = pc.subtract(offsets, offsets[0])
    if not isinstance(array, pa.MapArray):
        inner = converts[0](array.values.slice(start, size), say)
    else:
        entries = (part.slice(start, size) for part in (array.keys, array.items))
        keys, values = (convert(part, say) for convert, part in zip(converts, entries, strict=True))
        if keep:
            return pa.MapArray.from_arrays(offsets, keys, values, mask=array.is_null())
        inner = pa.StructArray.from_arrays([keys, values], names=["key", "value"])
    return pa.LargeListArray.from_arrays(offsets.cast(pa.int64()), inner, mask=array.is_null())
