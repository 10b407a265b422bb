"""Writes the rows of a query into a file, as they come, or lets Daft write a folder."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import daft
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from daft import DataFrame, col

from daft_vllm.errors import OptionError
from daft_vllm.tables.forms import Form, TableFormat, form_of, json_line
from daft_vllm.tables.leaves import Say
from daft_vllm.wording import safe_line, shown

FORMATS: Mapping[str, TableFormat] = {
    ".parquet": "parquet",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
}
"""The format of a file, by the end of its name."""
_Put = Callable[[list[pa.Array]], None]


@dataclass(frozen=True)
class Output:
    """Where a table goes. Make it with ``output_of``, which checks it.

    Attributes:
        place: the file, the folder or the URL, as it was given.
        kind: the format. A folder and a URL get Parquet files.
        is_folder: whether Daft writes a folder.
        overwrite: whether what is there is replaced.
        notes: for each column, what a reader of the file has to know. Filled while rows are written.
    """

    place: str
    kind: TableFormat
    is_folder: bool
    overwrite: bool = False
    notes: dict[str, list[str]] = field(default_factory=dict, compare=False)

    def check_schema(self, schema: daft.Schema) -> None:
        """Raise ``OptionError`` if the file can't hold a column of the table."""
        self._forms(schema)

    def write(self, df: DataFrame) -> int:
        """Run the plan of a table and write its rows. Return how many there were.

        A file is written in a new folder beside it, and gets its place when it is complete. So nothing that others put
        there under a name that they can guess is written to.
        """
        forms = self._forms(df.schema())
        return self._write_folder(df, forms) if self.is_folder else self._write_file(df, forms)

    def _forms(self, schema: daft.Schema) -> list[Form]:
        return [form_of(one.name, one.dtype, self.kind) for one in schema]

    def _say(self, column: str) -> Say:
        def say(what: str) -> None:
            said = self.notes.setdefault(column, [])
            if what not in said:
                said.append(what)

        return say

    def _write_folder(self, df: DataFrame, forms: list[Form]) -> int:
        fields, empty = list(df.schema()), _empty_arrays(df)
        for one, form, before in zip(fields, forms, empty, strict=True):
            after = form.convert(before, lambda _: None)
            if after.type != before.type:
                df = df.with_column(one.name, _converted(form, after.type, self._say(one.name))(col(one.name)))
        mode: Any = "overwrite" if self.overwrite else "append"
        written = df.write_parquet(self.place, write_mode=mode).to_pydict()["path"]
        return sum(daft.read_parquet(path).count_rows() for path in written)

    def _write_file(self, df: DataFrame, forms: list[Form]) -> int:
        target = Path(self.place)
        names = df.schema().column_names()
        said = [self._say(name) for name in names]
        empty = _empty_arrays(df)
        types = [form.convert(array, lambda _: None).type for form, array in zip(forms, empty, strict=True)]
        rows = 0
        with _part_folder(target.parent) as folder:
            part = folder / target.name
            with _SINKS[self.kind](part, pa.schema(list(zip(names, types, strict=True))), forms) as put:
                for batch in df.to_arrow_iter():
                    arrays = [
                        form.convert(column, say) for form, column, say in zip(forms, batch.columns, said, strict=True)
                    ]
                    put(
                        [
                            one if one.type == type_ else one.cast(type_)
                            for one, type_ in zip(arrays, types, strict=True)
                        ]
                    )
                    rows += batch.num_rows
            part.replace(target)
        return rows


def output_of(place: str, *, overwrite: bool = False) -> Output:
    """Return where a table goes, and make sure that it can be written there.

    Args:
        place: a file whose name ends as in ``FORMATS``; or a folder (which exists, or ends in ``/``) or a URL, for
            Parquet files.
        overwrite: replace what is there.

    Raises:
        OptionError: the format is unknown, something is there already, or nothing can be written there.
    """
    if "://" in place:
        _check_url(place, overwrite)
        return Output(place, "parquet", is_folder=True, overwrite=overwrite)
    if not place:
        raise OptionError("the output has no name: write for example answers.parquet.")
    path = Path(place).expanduser()
    kind = FORMATS.get(path.suffix.lower())
    if place.endswith("/") or path.is_dir():
        if kind is not None and not place.endswith("/"):
            raise OptionError(
                f"{place} is a folder, not a file: write {place.rstrip('/')}/ to put Parquet files there."
            )
        _check_folder(path, place, overwrite)
        return Output(str(path), "parquet", is_folder=True, overwrite=overwrite)
    if kind is None:
        raise OptionError(
            f"cannot tell the format of {shown(place)}: end it in {', '.join(FORMATS)}, or in / for a folder of "
            "Parquet files."
        )
    if path.exists() and not overwrite:
        raise OptionError(f"{shown(place)} exists already: choose another name, or pass --overwrite.")
    with _writable(place):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _part_folder(path.parent):
            pass
    return Output(str(path), kind, is_folder=False, overwrite=overwrite)


def _check_folder(path: Path, place: str, overwrite: bool) -> None:
    with _writable(place):
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()) and not overwrite:
            raise OptionError(f"the folder {shown(place)} has files already: choose another one, or pass --overwrite.")
        with _part_folder(path):
            pass


def _check_url(place: str, overwrite: bool) -> None:
    try:
        there = daft.from_glob_path(f"{place.rstrip('/')}/**").limit(1).count_rows()
    except FileNotFoundError:
        return
    except Exception as e:
        raise OptionError(f"{shown(place)} can't be reached: {first_line(e)}") from None
    if there and not overwrite:
        raise OptionError(f"{shown(place)} has files already: choose another one, or pass --overwrite.")


@contextlib.contextmanager
def _writable(place: str) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise OptionError(f"{place} can't be written: {e.strerror}. Choose another output.") from None


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, without the name of Daft's class."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return safe_line(lines[0].rpartition("DaftError::")[2]) if lines else type(error).__name__


@contextlib.contextmanager
def _part_folder(beside: Path) -> Iterator[Path]:
    """Make a folder that only this user can use, and remove it at the end."""
    with tempfile.TemporaryDirectory(prefix=".daft-vllm-", suffix=".part", dir=beside) as folder:
        yield Path(folder)


def _empty_arrays(df: DataFrame) -> list[pa.Array]:
    """Return an array without rows for each column, of the type that Daft gives its batches."""
    return [pa.nulls(0, one.type) for one in df.schema().to_pyarrow_schema()]


def _converted(form: Form, arrow_type: pa.DataType, say: Say) -> Any:
    """Return a function of Daft that converts a column before Daft writes it."""

    @daft.func.batch(return_dtype=daft.DataType.from_arrow_type(arrow_type))
    def convert(column: daft.Series) -> daft.Series:
        return daft.Series.from_arrow(form.convert(column.to_arrow(), say).cast(arrow_type))

    return convert


@contextlib.contextmanager
def _parquet_sink(path: Path, schema: pa.Schema, forms: list[Form]) -> Iterator[_Put]:
    with pq.ParquetWriter(path, schema) as writer:
        yield lambda arrays: writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


@contextlib.contextmanager
def _json_sink(path: Path, schema: pa.Schema, forms: list[Form]) -> Iterator[_Put]:
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
def _csv_sink(path: Path, schema: pa.Schema, forms: list[Form], delimiter: str = ",") -> Iterator[_Put]:
    with pa_csv.CSVWriter(path, schema, write_options=pa_csv.WriteOptions(delimiter=delimiter)) as writer:
        yield lambda arrays: writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _tsv_sink(path: Path, schema: pa.Schema, forms: list[Form]) -> contextlib.AbstractContextManager[_Put]:
    return _csv_sink(path, schema, forms, "\t")


_SINKS: Mapping[TableFormat, Callable[[Path, pa.Schema, list[Form]], contextlib.AbstractContextManager[_Put]]] = {
    "parquet": _parquet_sink,
    "json": _json_sink,
    "csv": _csv_sink,
    "tsv": _tsv_sink,
}
