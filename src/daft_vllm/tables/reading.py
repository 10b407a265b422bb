"""Reads tables from files: Parquet, CSV, TSV, JSON lines, or the images of a folder."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import daft
from daft import DataFrame, col, lit
from daft.functions import when

from daft_vllm.errors import OptionError
from daft_vllm.tables.writing import first_line

_JSON = (".json", ".jsonl", ".ndjson")
_TEXT = (".csv", ".tsv")
READERS: Mapping[str, Callable[[str], DataFrame]] = {
    ".parquet": daft.read_parquet,
    ".csv": daft.read_csv,
    ".tsv": partial(daft.read_csv, delimiter="\t"),
    **dict.fromkeys(_JSON, daft.read_json),
}
"""How a file is read, by the end of its name."""
IMAGES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
"""Ends of the names of images."""
IMAGE_COLUMN = "path"
"""The column of a table that is a folder of images."""


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
        path: a file, a glob or an object-store URL whose name ends as in ``READERS`` or ``IMAGES``; or a folder of
            Parquet files or of images. A table of images has one column, ``path``.
        keep_empty: whether an empty cell of a CSV or TSV file is an empty text. Default: it is null.

    Raises:
        OptionError: nothing is there, or it can't be read.
    """
    place = path if "://" in path else os.path.abspath(os.path.expanduser(path))
    if os.path.isdir(place):
        place = f"{place}/**/*{_suffix_in(place, path)}"
    suffix = Path(place).suffix.lower()
    if suffix in IMAGES:
        return _images(place, path)
    if suffix not in READERS:
        raise OptionError(
            f"cannot tell the format of {path!r}: its name has to end in {', '.join(READERS)}, or in that of an image."
        )
    with explained(path):
        df = READERS[suffix](place)
    return Input(_checked_text(df, path, keep_empty=keep_empty) if suffix in _TEXT else df)


@contextlib.contextmanager
def explained(path: str) -> Iterator[None]:
    """Make an ``OptionError`` that says where a file is wrong of what Daft raises when it reads ``path``."""
    try:
        yield
    except OptionError:
        raise
    except FileNotFoundError:
        raise OptionError(f"there is no input {path!r}.") from None
    except Exception as e:
        local = "://" not in path and Path(path).suffix.lower() in _JSON
        found = _json_fault(sorted(glob.glob(os.path.expanduser(path), recursive=True))) if local else None
        raise OptionError(found or f"the input {path!r} can't be read: {first_line(e)}") from None


def _suffix_in(folder: str, path: str) -> str:
    """Return the end of the names of the tables or images in a folder."""
    found = {Path(name).suffix.lower() for _, _, names in os.walk(folder) for name in names}
    tables, images = sorted(found & set(READERS)), sorted(found & set(IMAGES))
    if tables and not images and len(tables) == 1:
        return tables[0]
    if images and not tables:
        return images[0]
    if not tables and not images:
        raise OptionError(f"the folder {path!r} has no {', '.join((*READERS, *IMAGES))} files.")
    several = [*tables, *images]
    raise OptionError(
        f"the folder {path!r} has files of several kinds ({', '.join(several)}): write "
        f"'{path.rstrip('/')}/*{several[0]}'."
    )


def _images(place: str, path: str) -> Input:
    wanted = place.rpartition("/**/*")
    if "://" in place:
        with explained(path):
            found = daft.from_glob_path(place).select(IMAGE_COLUMN)
        return Input(found, IMAGE_COLUMN)
    if wanted[1]:  # a folder: images of all kinds
        names = glob.glob(f"{glob.escape(wanted[0])}/**/*", recursive=True)
        names = sorted(name for name in names if Path(name).suffix.lower() in IMAGES)
    else:
        names = sorted(glob.glob(place, recursive=True))
    if not names:
        raise OptionError(f"there is no input {path!r}.")
    folders = tuple(sorted({os.path.dirname(name) for name in names}))
    return Input(daft.from_pydict({IMAGE_COLUMN: names}), IMAGE_COLUMN, folders)


def _checked_text(df: DataFrame, path: str, *, keep_empty: bool) -> DataFrame:
    for field in df.schema():
        if field.dtype.is_binary():
            raise OptionError(
                f"the input {path!r} is not in UTF-8 (column {field.name!r}): convert it, for example with "
                f"iconv -f latin1 -t utf-8 {shlex.quote(path)}."
            )
    if keep_empty:
        return df
    texts = [field.name for field in df.schema() if field.dtype.is_string()]
    return df.with_columns({name: when(col(name) != lit(""), col(name)) for name in texts})


def _json_fault(paths: Iterable[str]) -> str | None:
    """Return where the first of these files isn't JSON, and what to do."""

    def no_constant(name: str) -> None:
        raise ValueError(f"{name} is not JSON: write null")

    for path in paths:
        with contextlib.suppress(UnicodeDecodeError), open(path, encoding="utf-8") as file:
            number = 0
            for number, line in enumerate(file, 1):
                if number == 1 and line.lstrip().startswith("["):
                    return None  # one array; Daft says what is wrong with it
                if not line.strip():
                    delete = shlex.quote(path)
                    return f"line {number} of {path} is blank: delete it, for example with sed -i '/^\\s*$/d' {delete}."
                try:
                    value = json.loads(line, parse_constant=no_constant)
                except ValueError as e:
                    return f"line {number} of {path} can't be read: {e}."
                if not isinstance(value, dict):
                    return f"line {number} of {path} holds no JSON object."
            if not number:
                return f"{path} is empty."
    return None
