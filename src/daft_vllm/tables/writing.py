"""Writes the rows of a query into a file, as they come, or lets Daft write a folder."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import daft
import pyarrow as pa
from daft import DataFrame, col

from daft_vllm.errors import OptionError, OutputError
from daft_vllm.tables.forms import Form, TableFormat, form_of
from daft_vllm.tables.leaves import Say
from daft_vllm.tables.placing import Claim, finish_moving, part_folder
from daft_vllm.tables.problems import first_line, is_ours, problem_of, reason
from daft_vllm.tables.sinks import SINKS
from daft_vllm.wording import shown

FORMATS: Mapping[str, TableFormat] = {
    ".parquet": "parquet",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
}
"""The format of a file, by the end of its name."""


class Written(NamedTuple):
    """How many rows were written, and how many of them say in the column of errors why they have no answer."""

    rows: int
    failed: int


@dataclass(frozen=True)
class Output:
    """Where a table goes. Make it with ``output_of``, which checks it.

    Attributes:
        place: the file, the folder or the URL, as it was given.
        kind: the format. A folder and a URL get Parquet files.
        is_folder: whether Daft writes Parquet files, into a folder or under a URL.
        overwrite: whether what is there is replaced.
        notes: for each column, what a reader of the file has to know. Filled while rows are written.
        before_placing: called with a complete file, which keeps its inode, right before the output gets its place.
        least: the fewest rows that have to come. With fewer, a local output doesn't get its place.
    """

    place: str
    kind: TableFormat
    is_folder: bool
    overwrite: bool = False
    notes: dict[str, list[str]] = field(default_factory=dict, compare=False)
    before_placing: Callable[[Path], None] = field(default=lambda _: None, compare=False)
    least: int = 0
    _claims: list[Claim] = field(default_factory=list, compare=False)

    @property
    def target(self) -> Path | None:
        """The local file or folder. None: it is a URL."""
        return None if "://" in self.place else _local(self.place, is_folder=self.is_folder)

    def exists(self) -> bool:
        """Whether a file, or a folder with files, is there. A URL is not looked at."""
        if self.target is None:
            return False
        return _has_files(self.target) if self.is_folder else self.target.exists()

    def check_schema(self, schema: daft.Schema) -> None:
        """Raise ``OptionError`` if the file can't hold a column of the table."""
        self._forms(schema)

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Keep other jobs from writing this output inside. Nobody is kept from a URL.

        Raises:
            OptionError: another job writes it now, or it can't be written.
        """
        if self.target is None or self._claims:
            yield
            return
        with _writable(self.place):
            claim = Claim(self.target)
        self._claims.append(claim)
        try:
            yield
        finally:
            self.release()

    def release(self) -> None:
        """Remove what is not complete, and let other jobs write this output. Safe to call again."""
        while self._claims:
            self._claims.pop().release()

    def write(self, df: DataFrame, errors: str | None = None) -> Written:
        """Run the plan of a table and write its rows. Return how many there were.

        A local output is complete or absent: it is made in a hidden folder on the same disk, which only this user can
        use, and gets its place when it is complete and on the disk. May be called again after it failed.

        Args:
            df: the table.
            errors: name of the column that says why a row has no answer. None: there is none.

        Raises:
            OutputError: it can't be written: the disk is full, for example; or rows are missing. Nothing is left.
        """
        forms = self._forms(df.schema())
        with self.claimed():
            if self.is_folder:
                return self._write_folder(df, forms, errors)
            return self._write_file(df, forms, errors)

    def _forms(self, schema: daft.Schema) -> list[Form]:
        return [form_of(one.name, one.dtype, self.kind) for one in schema]

    def _say(self, column: str) -> Say:
        def say(what: str) -> None:
            said = self.notes.setdefault(column, [])
            if what not in said:
                said.append(what)

        return say

    def _write_folder(self, df: DataFrame, forms: list[Form], errors: str | None) -> Written:
        fields, empty = list(df.schema()), _empty_arrays(df)
        for one, form, before in zip(fields, forms, empty, strict=True):
            after = form.convert(before, lambda _: None)
            if after.type != before.type:
                df = df.with_column(one.name, _converted(form, after.type, self._say(one.name))(col(one.name)))
        if not self._claims:
            mode: Any = "overwrite" if self.overwrite else "append"
            return self._complete(_counted(df.write_parquet(self.place, write_mode=mode).to_pydict()["path"], errors))
        (claim,) = self._claims
        with self._named_problem():
            folder = claim.new_folder()
        try:
            written = df.write_parquet(str(folder), write_mode="append").to_pydict()["path"]
        except Exception as e:
            problem = None if is_ours(e) else problem_of(e, folder)
            if problem is None:
                raise
            raise OutputError(f"rows can't be written to {shown(self.place)}: {problem}.") from None
        with self._named_problem():
            counts = self._complete(_counted(written, errors))
            claim.place_folder(self.before_placing)
        return counts

    def _write_file(self, df: DataFrame, forms: list[Form], errors: str | None) -> Written:
        (claim,) = self._claims
        names = df.schema().column_names()
        said = [self._say(name) for name in names]
        empty = _empty_arrays(df)
        types = [form.convert(array, lambda _: None).type for form, array in zip(forms, empty, strict=True)]
        rows = failed = 0
        with self._named_problem():
            part = claim.new_file()
            sink = SINKS[self.kind](part, pa.schema(list(zip(names, types, strict=True))), forms)
            put = sink.__enter__()
        try:
            for batch in df.to_arrow_iter():
                arrays = [
                    form.convert(column, say) for form, column, say in zip(forms, batch.columns, said, strict=True)
                ]
                arrays = [
                    one if one.type == type_ else one.cast(type_) for one, type_ in zip(arrays, types, strict=True)
                ]
                with self._named_problem():
                    put(arrays)
                rows += batch.num_rows
                if errors is not None:
                    column = batch.column(names.index(errors))
                    failed += batch.num_rows - column.null_count
        except BaseException:
            with contextlib.suppress(Exception):  # what it has not written yet can't be written either
                sink.__exit__(None, None, None)
            raise
        with self._named_problem():
            sink.__exit__(None, None, None)
            written = self._complete(Written(rows, failed))
            claim.place_file(self.before_placing)
        return written

    def _complete(self, written: Written) -> Written:
        """Return the same, or raise ``OutputError`` if rows are missing: Daft 0.7 may stop a query without an error."""
        if written.rows < self.least:
            raise OutputError(
                f"only {written.rows} of {self.least} rows came, and Daft gave no error: {shown(self.place)} is not "
                "complete."
            )
        return written

    @contextlib.contextmanager
    def _named_problem(self) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            raise OutputError(f"rows can't be written to {shown(self.place)}: {reason(e)}.") from None


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
        _check_folder(place, overwrite)
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
        Claim(path).release()
    return Output(str(path), kind, is_folder=False, overwrite=overwrite)


def _check_folder(place: str, overwrite: bool) -> None:
    path = _local(place, is_folder=True)
    with _writable(place):
        path.parent.mkdir(parents=True, exist_ok=True)
        finish_moving(path)
        if _has_files(path) and not overwrite:
            raise OptionError(f"the folder {shown(place)} has files already: choose another one, or pass --overwrite.")
        Claim(path).release()
        if path.is_dir():
            with tempfile.TemporaryFile(dir=path):
                pass


def _has_files(folder: Path) -> bool:
    return folder.is_dir() and any(path != part_folder(folder) for path in folder.iterdir())


def _local(place: str, *, is_folder: bool) -> Path:
    """Return a local output. A folder that is a link is the one that it leads to; a file takes the link's place."""
    path = Path(place).expanduser()
    return path.resolve() if is_folder else path.parent.resolve() / path.name


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


def _counted(paths: list[str], errors: str | None) -> Written:
    """Count the rows of Parquet files."""
    if not paths:
        return Written(0, 0)
    df = daft.read_parquet(paths)
    named = df.select((col(errors) if errors is not None else daft.lit(None)).is_null().alias("none"))
    (row,) = named.agg(col("none").count().alias("rows"), col("none").cast(daft.DataType.int64()).sum()).to_pylist()
    return Written(row["rows"], row["rows"] - (row["none"] or 0))


def _empty_arrays(df: DataFrame) -> list[pa.Array]:
    """Return an array without rows for each column, of the type that Daft gives its batches."""
    return [pa.nulls(0, one.type) for one in df.schema().to_pyarrow_schema()]


def _converted(form: Form, arrow_type: pa.DataType, say: Say) -> Any:
    """Return a function of Daft that converts a column before Daft writes it."""

    @daft.func.batch(return_dtype=daft.DataType.from_arrow_type(arrow_type))
    def convert(column: daft.Series) -> daft.Series:
        return daft.Series.from_arrow(form.convert(column.to_arrow(), say).cast(arrow_type))

    return convert
