"""Reads tables from files: Parquet, CSV, TSV, JSON lines, or the images of a folder."""

from __future__ import annotations

import contextlib
import glob
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import daft
from daft import DataFrame, DataType

from daft_vllm.dtypes import holds
from daft_vllm.errors import OptionError
from daft_vllm.tables.delimited import not_in_utf8, read_delimited
from daft_vllm.tables.json_lines import read_json_lines
from daft_vllm.tables.problems import first_line
from daft_vllm.wording import shown

_JSON = (".json", ".jsonl", ".ndjson")
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
TABLES = (".parquet", *_DELIMITERS, *_JSON)
"""Ends of the names of tables."""
IMAGES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
"""Ends of the names of images."""
IMAGE_COLUMN = "path"
"""The column of a table that is a folder of images."""


_Read = Callable[[str], DataFrame]


@dataclass(frozen=True)
class Input:
    """A table that was read.

    Attributes:
        df: the table.
        images: the column with the paths of images, if the input is a folder of images.
        folders: the local folders that these images are in.
    """

    df: DataFrame
    images: str | None = None
    folders: tuple[str, ...] = ()


def read_table(path: str, *, keep_empty: bool = False) -> DataFrame:
    """Return the table that ``read_input`` reads."""
    return read_input(path, keep_empty=keep_empty).df


def read_input(path: str, *, keep_empty: bool = False) -> Input:
    """Read a table; its rows are read when a query needs them.

    Args:
        path: a file, a glob or an object-store URL whose name ends as in ``TABLES`` or ``IMAGES``; or a folder of
            Parquet files or of images. A table of images has one column, ``path``.
        keep_empty: whether an empty cell of a CSV or TSV file is an empty text. Default: it is null.

    Raises:
        OptionError: nothing is there, or it can't be read.
    """
    place = path if "://" in path else os.path.expanduser(path)
    if not path:
        raise OptionError(f"the input has no name: write for example --input table{TABLES[0]}.")
    is_folder = os.path.isdir(place)
    suffix = _suffix_in(place, path) if is_folder else Path(place).suffix.lower()
    if suffix in IMAGES:
        return _images(place, path, is_folder=is_folder)
    if is_folder:
        place = f"{glob.escape(place)}/**/*{suffix}"
    if suffix not in TABLES:
        if not suffix and not os.path.exists(place):  # a folder that isn't there, perhaps
            raise OptionError(f"there is no input {shown(path)}.")
        raise OptionError(
            f"cannot tell the format of {shown(path)}: its name has to end in {', '.join(TABLES)}, or in that of an "
            "image."
        )
    with explained(path):
        found = _table(place, suffix, path, keep_empty=keep_empty)
        _check_no_code(found, path)
        return Input(found)


def _check_no_code(df: DataFrame, path: str) -> None:
    """Raise ``OptionError`` for a column of Python objects: Daft unpickles them, which runs code that a file holds."""
    found = [field.name for field in df.schema() if holds(field.dtype, DataType.is_python)]
    if found:
        raise OptionError(
            f"the input {shown(path)} has Python objects in {', '.join(found)}, and to read them is to run code that "
            "the file holds: leave the column out of the file, or write it as text."
        )


@contextlib.contextmanager
def explained(path: str) -> Iterator[None]:
    """Make an ``OptionError`` of what Daft raises when it reads ``path``."""
    try:
        yield
    except OptionError:
        raise
    except FileNotFoundError:
        raise OptionError(f"there is no input {shown(path)}.") from None
    except Exception as e:
        if "invalid utf-8" in str(e).lower():
            raise OptionError(not_in_utf8(path)) from None
        raise OptionError(f"the input {shown(path)} can't be read: {first_line(e)}") from None


def _table(place: str, suffix: str, path: str, *, keep_empty: bool) -> DataFrame:
    found = _found(place)
    patterns = found if "://" in place else [_pattern(one) for one in found]
    if suffix in _JSON:
        # Those behind a URL aren't read here: Daft takes their types from their first rows.
        return daft.read_json(place) if "://" in place else read_json_lines(found, patterns)
    delimiter = _DELIMITERS.get(suffix)
    if delimiter is None:
        _check_same(found, patterns, daft.read_parquet, ordered=False)
        return daft.read_parquet(list(patterns))
    _check_same(found, patterns, partial(daft.read_csv, delimiter=delimiter), ordered=True)
    return read_delimited(patterns, delimiter, path, keep_empty=keep_empty)


def _found(place: str) -> list[str]:
    """Return the files that a glob, a file's name or a URL means, in the order of their names.

    Raises:
        FileNotFoundError: there is none.
    """
    if "://" in place:
        is_glob = "*" in place or "[" in place
        return sorted(daft.from_glob_path(place).to_pydict()["path"]) if is_glob else [place]
    found = [place] if os.path.exists(place) else sorted(glob.glob(place, recursive=True))
    if not found:
        raise FileNotFoundError(place)
    return found


def _pattern(path: str) -> str:
    """Return the glob that means one local file. Daft takes all names for globs, and finds relative ones nowhere."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", os.path.abspath(path))


def _check_same(found: Sequence[str], patterns: Sequence[str], read: _Read, *, ordered: bool) -> None:
    """Raise ``OptionError`` for a file that has not the columns of the first one; Daft would lose or mix them up."""
    if len(found) == 1:
        return

    def columns(pattern: str) -> list[tuple[str, str]]:
        fields = read(pattern).schema()
        if ordered:  # the types are found out later, from all files
            return [(field.name, "") for field in fields]
        return sorted((field.name, str(field.dtype)) for field in fields)

    with ThreadPoolExecutor(16) as pool:
        each = list(pool.map(columns, patterns))
    for name, one in zip(found, each, strict=True):
        if one != each[0]:
            raise OptionError(
                f"{found[0]} and {name} have different columns: {_listed(each[0])}, and {_listed(one)}. Give them the "
                "same ones, or run each by itself."
            )


def _listed(columns: Sequence[tuple[str, str]]) -> str:
    return ", ".join(" ".join(one).strip() for one in columns)


def _suffix_in(folder: str, path: str) -> str:
    """Return the end of the names of the tables or images in a folder."""
    found = {Path(name).suffix.lower() for _, _, names in os.walk(folder) for name in names}
    tables, images = sorted(found & set(TABLES)), sorted(found & set(IMAGES))
    if tables and not images and len(tables) == 1:
        return tables[0]
    if images and not tables:
        return images[0]
    if not tables and not images:
        raise OptionError(f"the folder {shown(path)} has no {', '.join((*TABLES, *IMAGES))} files.")
    several = [*tables, *images]
    raise OptionError(
        f"the folder {shown(path)} has files of several kinds ({', '.join(several)}): write "
        f"'{path.rstrip('/')}/*{several[0]}'."
    )


def _images(place: str, path: str, *, is_folder: bool) -> Input:
    """Return a table of images: those of one glob, or those of every kind in a folder."""
    with explained(path):
        if "://" in place:
            return Input(daft.from_glob_path(place).select(IMAGE_COLUMN), IMAGE_COLUMN)
        names = _found(f"{glob.escape(place)}/**/*" if is_folder else place)
    names = [os.path.abspath(name) for name in names]
    if is_folder:
        names = [name for name in names if Path(name).suffix.lower() in IMAGES]
    folders = tuple(sorted({os.path.dirname(name) for name in names}))
    return Input(daft.from_pydict({IMAGE_COLUMN: names}), IMAGE_COLUMN, folders)
