"""Writes the rows of a file, in each format."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from daft_vllm.tables.forms import Form, TableFormat, json_line

Put = Callable[[list[pa.Array]], None]
"""Writes some rows: an array for each column."""


@contextlib.contextmanager
def _parquet_sink(path: Path, schema: pa.Schema, forms: list[Form]) -> Iterator[Put]:
    with pq.ParquetWriter(path, schema) as writer:
        yield lambda arrays: writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


@contextlib.contextmanager
def _json_sink(path: Path, schema: pa.Schema, forms: list[Form]) -> Iterator[Put]:
    with path.open("w", encoding="utf-8") as file:

        def put(arrays: list[pa.Array]) -> None:
            columns = [
                [form.value(cell) for cell in array.to_pylist()] if form.value else array.to_pylist()
                for form, array in zip(forms, arrays, strict=True)
            ]
            for row in zip(*columns, strict=True):
                file.write(json_line(dict(zip(schema.names, row, strict=True))) + "\n")

        yield put


@contextlib.contextmanager
def _csv_sink(path: Path, schema: pa.Schema, forms: list[Form], delimiter: str = ",") -> Iterator[Put]:
    with pa_csv.CSVWriter(path, schema, write_options=pa_csv.WriteOptions(delimiter=delimiter)) as writer:
        yield lambda arrays: writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _tsv_sink(path: Path, schema: pa.Schema, forms: list[Form]) -> contextlib.AbstractContextManager[Put]:
    return _csv_sink(path, schema, forms, "\t")


SINKS: Mapping[TableFormat, Callable[[Path, pa.Schema, list[Form]], contextlib.AbstractContextManager[Put]]] = {
    "parquet": _parquet_sink,
    "json": _json_sink,
    "csv": _csv_sink,
    "tsv": _tsv_sink,
}
"""Opens a file for rows, by its format. At the end of the ``with`` block the file is complete."""
