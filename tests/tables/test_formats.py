"""Every column type of Daft, through every output format, read back by Daft, pyarrow and the standard library."""

from __future__ import annotations

import base64
import csv
import datetime as dt
import io
import json
import math
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import daft
import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pq
import pytest
from daft import DataType, Series
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from daft_vllm.errors import OptionError
from daft_vllm.tables.writing import output_of

T = DataType


class Kind(NamedTuple):
    """A type, how its values are drawn, and what the standard library finds for a value in JSON."""

    dtype: DataType
    values: st.SearchStrategy[Any]
    as_json: Callable[[Any], Any]


def _same(value: Any) -> Any:
    return value


def _nullable(kind: Kind) -> st.SearchStrategy[Any]:
    return st.none() | kind.values


def _float(value: float) -> float | None:
    return value if math.isfinite(value) else None


TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
TIMES = st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2200, 1, 1))
LEAVES = [
    Kind(T.null(), st.none(), _same),
    Kind(T.bool(), st.booleans(), _same),
    *(
        Kind(getattr(T, f"{sign}int{bits}")(), st.integers(low, high), _same)
        for bits in (8, 16, 32, 64)
        for sign, low, high in (("", -(2 ** (bits - 1)), 2 ** (bits - 1) - 1), ("u", 0, 2**bits - 1))
    ),
    Kind(T.float32(), st.floats(width=32), _float),
    Kind(T.float64(), st.floats(), _float),
    Kind(T.decimal128(20, 6), st.decimals(-(10**13), 10**13, places=6), lambda v: format(v, ".6f")),
    Kind(T.string(), TEXT, _same),
    Kind(T.binary(), st.binary(max_size=8), lambda v: base64.b64encode(v).decode()),
    Kind(T.fixed_size_binary(3), st.binary(min_size=3, max_size=3), lambda v: base64.b64encode(v).decode()),
    Kind(T.date(), st.dates(dt.date(1600, 1, 1), dt.date(9000, 1, 1)), dt.date.isoformat),
    Kind(T.time("us"), st.times(), lambda v: v.isoformat("microseconds")),
    Kind(T.timestamp("us"), TIMES, lambda v: v.isoformat(timespec="microseconds")),
    Kind(
        T.timestamp("ms", "UTC"),
        TIMES.map(lambda v: v.replace(microsecond=0, tzinfo=dt.UTC)),
        lambda v: f"{v:%Y-%m-%dT%H:%M:%S}.000Z",
    ),
    Kind(
        T.timestamp("us", "Europe/Berlin"),
        TIMES.map(lambda v: v.replace(tzinfo=dt.UTC)),
        lambda v: f"{v.astimezone(dt.UTC).replace(tzinfo=None).isoformat(timespec='microseconds')}Z",
    ),
]


def _nested(inner: st.SearchStrategy[Kind]) -> st.SearchStrategy[Kind]:
    def lists(kind: Kind) -> Kind:
        as_json = lambda v: [None if one is None else kind.as_json(one) for one in v]  # noqa: E731
        return Kind(T.list(kind.dtype), st.lists(_nullable(kind), max_size=3), as_json)

    def fixed(kind: Kind) -> Kind:
        return lists(kind)._replace(
            dtype=T.fixed_size_list(kind.dtype, 2), values=st.lists(_nullable(kind), min_size=2, max_size=2)
        )

    def structs(kinds: list[Kind]) -> Kind:
        named = {f"f{i} é": kind for i, kind in enumerate(kinds)}
        values = st.fixed_dictionaries({name: _nullable(kind) for name, kind in named.items()})
        as_json = lambda v: {n: None if v[n] is None else kind.as_json(v[n]) for n, kind in named.items()}  # noqa: E731
        return Kind(T.struct({name: kind.dtype for name, kind in named.items()}), values, as_json)

    def maps(kind: Kind) -> Kind:
        as_json = lambda v: {key: None if one is None else kind.as_json(one) for key, one in v.items()}  # noqa: E731
        return Kind(T.map(T.string(), kind.dtype), st.dictionaries(TEXT, _nullable(kind), max_size=3), as_json)

    return st.one_of(
        inner.map(lists), inner.map(fixed), st.lists(inner, min_size=1, max_size=3).map(structs), inner.map(maps)
    )


# A column of nulls only by itself: in lists of one size Daft's own arrays of them are invalid.
KINDS = st.sampled_from(LEAVES) | st.recursive(st.sampled_from(LEAVES[1:]), _nested, max_leaves=4)


@st.composite
def tables(draw: st.DrawFn) -> list[tuple[Kind, list[Any]]]:
    rows = draw(st.integers(1, 3))
    kinds = draw(st.lists(KINDS, min_size=1, max_size=3))
    return [(kind, draw(st.lists(_nullable(kind), min_size=rows, max_size=rows))) for kind in kinds]


def write(df: daft.DataFrame, folder: Path, suffix: str) -> Path:
    path = folder / f"out{suffix}"
    output_of(str(path), overwrite=True).write(df)
    return path


def without_sizes(dtype: DataType) -> str:
    """Return a type's name, without the sizes of lists: pyarrow can't read a null among lists of one size."""
    return re.sub(r"; 2\]", "]", str(dtype))


def strict(text: str | bytes) -> Any:
    def no_constant(name: str) -> Any:
        raise ValueError(f"{name} is no JSON")

    return json.loads(text, parse_constant=no_constant)


SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@SETTINGS
@given(table=tables())
def test_every_table_comes_back(tmp_path_factory: pytest.TempPathFactory, table: list[tuple[Kind, list[Any]]]) -> None:
    folder = tmp_path_factory.mktemp("formats")
    columns = {
        f"c{i}": Series.from_arrow(pa.array(cells, kind.dtype.to_arrow_dtype()), dtype=kind.dtype)
        for i, (kind, cells) in enumerate(table)
    }
    df = daft.from_pydict({"row": list(range(len(table[0][1]))), **columns})
    wanted = [
        {
            "row": row,
            **{
                f"c{i}": None if cells[row] is None else kind.as_json(cells[row])
                for i, (kind, cells) in enumerate(table)
            },
        }
        for row in range(len(table[0][1]))
    ]

    # JSON lines
    path = write(df, folder, ".jsonl")
    assert [strict(line) for line in path.read_bytes().splitlines()] == wanted
    assert daft.read_json(str(path)).to_pydict()["row"] == df.to_pydict()["row"]
    assert pa_json.read_json(path)["row"].to_pylist() == df.to_pydict()["row"]

    # Parquet: the same values, by Daft and by pyarrow
    path = write(df, folder, ".parquet")
    again, here = daft.read_parquet(str(path)), df
    assert [str(one.dtype) for one in again.schema()] == [without_sizes(one.dtype) for one in here.schema()]
    assert str(again.to_pydict()) == str(here.to_pydict())  # texts, because NaN is not equal to itself
    assert pq.read_table(path).num_rows == len(wanted)

    # CSV and TSV: nested cells are JSON text
    for suffix, delimiter in ((".csv", ","), (".tsv", "\t")):
        path = write(df, folder, suffix)
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file, delimiter=delimiter))
        for found, row in zip(rows, wanted, strict=True):
            assert list(found) == list(row)
            for name, cell in row.items():
                assert _csv_cell(found[name], cell, columns.get(name)), (found, row)
        options = pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
        assert pa_csv.read_csv(path, parse_options=options)["row"].to_pylist() == df.to_pydict()["row"]
        assert daft.read_csv(str(path), delimiter=delimiter).to_pydict()["row"] == df.to_pydict()["row"]


def _csv_cell(found: str, wanted: Any, column: Series | None) -> bool:
    if isinstance(wanted, (list, dict)):
        return bool(strict(found) == wanted)
    if column is not None and column.datatype() in (T.float32(), T.float64()):
        exact = np.float32 if column.datatype() == T.float32() else float
        return wanted is None or bool(exact(found) == exact(wanted))
    if wanted is None:
        return found == ""
    return found == (str(wanted).lower() if isinstance(wanted, bool) else str(wanted))


PIXELS = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
PNG = "images as PNG in base64"


def _series(values: Any, dtype: DataType) -> daft.DataFrame:
    return daft.from_pydict({"row": [0, 1], "x": Series.from_pylist(values, dtype=dtype)})


def _arrow(values: Any, arrow_type: pa.DataType) -> daft.DataFrame:
    return daft.from_pydict({"row": [0, 1], "x": Series.from_arrow(pa.array(values, arrow_type))})


def _sparse(dtype: DataType, shape: tuple[int, int] | None = None) -> daft.DataFrame:
    dense = T.tensor(T.float64()) if shape is None else T.tensor(T.float64(), shape)
    return daft.from_pydict({"row": [0, 1], "x": Series.from_pylist([np.eye(2), None], dtype=dense).cast(dtype)})


SPARSE = {"values": [1.0, 1.0], "indices": [0, 3], "shape": [2, 2]}
SPECIAL: dict[str, tuple[daft.DataFrame, Any, str]] = {
    "embedding": (
        _series([np.array([1, 2.5], np.float32), None], T.embedding(T.float32(), 2)),
        [1, 2.5],
        "List[Float32]",
    ),
    "tensor": (
        _series([np.ones((1, 2)), None], T.tensor(T.float64())),
        {"data": [1, 1], "shape": [1, 2]},
        "Tensor[Float64]",
    ),
    "fixed tensor": (
        _series([np.arange(6.0).reshape(2, 3), None], T.tensor(T.float64(), (2, 3))),
        [[0, 1, 2], [3, 4, 5]],
        "Tensor[Float64]",
    ),
    "sparse tensor": (_sparse(T.sparse_tensor(T.float64())), SPARSE, "SparseTensor"),
    "fixed sparse tensor": (_sparse(T.sparse_tensor(T.float64(), (2, 2)), (2, 2)), SPARSE, "FixedShapeSparseTensor"),
    "image": (_series([PIXELS, None], T.image("RGB")), PNG, "Image[RGB]"),
    "fixed image": (_series([PIXELS, None], T.image("RGB", 2, 2)), PNG, "Image[RGB]"),
    "images in a list": (_series([[PIXELS, None], None], T.list(T.image("RGB"))), PNG, "List[Image[RGB]]"),
    "file": (
        daft.from_pydict({"row": [0, 1], "p": ["/etc/hosts", None]}).select(
            "row", daft.functions.file(daft.col("p")).alias("x")
        ),
        {"url": "/etc/hosts", "position": None, "size": None},
        "File",
    ),
    "uuid": (
        daft.from_pydict(
            {
                "row": [0, 1],
                "x": Series.from_arrow(
                    pa.ExtensionArray.from_storage(pa.uuid(), pa.array([uuid.UUID(int=7).bytes, None], pa.binary(16)))
                ),
            }
        ),
        str(uuid.UUID(int=7)),
        "UUID",
    ),
    "seconds": (
        _arrow([5, None], pa.timestamp("s", "Europe/Berlin")),
        "1970-01-01T00:00:05Z",
        "Timestamp[ms; Europe/Berlin]",
    ),
    "nanoseconds": (_arrow([1, None], pa.timestamp("ns")), "1970-01-01T00:00:00.000000001", "Timestamp[ns]"),
    "a far time": (_arrow([2**62, None], pa.timestamp("s")), None, "Timestamp[ms]"),
    "a negative duration": (_arrow([-1500001, None], pa.duration("us")), "-PT1.500001S", "Duration[us]"),
    "interval": (_arrow([(1, -2, 3), None], pa.month_day_nano_interval()), "P1M-2DT0.000000003S", "String"),
    "struct without fields": (_arrow([{}, None], pa.struct([])), {}, "String"),
    "float16": (_arrow([np.float16(1.5), None], pa.float16()), 1.5, "Float16"),
    "map with numbers as keys": (
        _arrow([[(1, 2)], None], pa.map_(pa.int64(), pa.int64())),
        [{"key": 1, "value": 2}],
        "Map",
    ),
    "map with dates as keys": (
        _arrow([[(dt.date(2020, 1, 1), 2)], None], pa.map_(pa.date32(), pa.int64())),
        {"2020-01-01": 2},
        "Map",
    ),
    "map with a key twice": (
        _arrow([[("a", 1), ("a", 2)], None], pa.map_(pa.string(), pa.int64())),
        [{"key": "a", "value": 1}, {"key": "a", "value": 2}],
        "Map",
    ),
    "NaN": (_arrow([float("nan"), None], pa.float64()), None, "Float64"),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_types_of_daft_that_formats_have_not(name: str, tmp_path: Path) -> None:
    df, wanted, stored = SPECIAL[name]
    path = write(df, tmp_path, ".jsonl")
    cells = [strict(line)["x"] for line in path.read_bytes().splitlines()]
    if wanted == PNG:
        (cell,) = cells[0][:1] if isinstance(cells[0], list) else [cells[0]]
        assert np.array_equal(np.array(Image.open(io.BytesIO(base64.b64decode(cell)))), PIXELS)
    else:
        assert cells == [wanted, None]
    assert daft.read_json(str(path)).count_rows() == 2
    written = [output_of(str(tmp_path / "o.parquet")), output_of(f"{tmp_path}/folder/")]
    for output in written:  # by pyarrow, and by Daft itself
        assert output.write(df).rows == 2
        again = daft.read_parquet(output.place if output is written[0] else f"{output.place}/*.parquet")
        assert str(again.schema()["x"].dtype).startswith(stored)
        assert again.to_pydict()["x"][1] is None
    assert pq.read_table(written[0].place).num_rows == 2
    assert pa_csv.read_csv(write(df, tmp_path, ".csv")).num_rows == 2


def test_what_a_reader_has_to_know_is_said_and_the_rest_is_refused(tmp_path: Path) -> None:
    output = output_of(str(tmp_path / "o.jsonl"))
    output.write(daft.from_pydict({"b": [b"x", None], "f": [1.0, float("inf")], "t": ["a", "b"]}))
    assert output.notes == {"b": ["bytes as base64"], "f": ["NaN and infinity as null"]}
    df = daft.from_pydict({"s": [{"o": 1}]}).with_column("p", daft.lit(object()))
    with pytest.raises(OptionError, match="the column 'p' of type Python can't be written: cast it"):
        output.check_schema(df.schema())
    secret = daft.io.IOConfig(s3=daft.io.S3Config(key_id="k", access_key="very-secret"))
    files = daft.from_pydict({"p": ["s3://b/k"]}).select(
        daft.functions.file(daft.col("p"), io_config=secret).alias("x")
    )
    write(files, tmp_path, ".parquet")
    assert b"very-secret" not in (tmp_path / "out.parquet").read_bytes()
