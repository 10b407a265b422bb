"""Reads CSV and TSV files without losing what a cell says.

Daft takes the types of columns from the first rows. A later cell of another type is null then, ``007`` is 7, and the
columns of several files are told apart by their places alone. So cells are read as text here, and only columns in which
every cell of the table is a number or a boolean get that type.
"""

from __future__ import annotations

import codecs
import contextlib
import shlex
from collections.abc import Mapping, Sequence

import daft
from daft import DataFrame, DataType, col, lit
from daft.functions import when

from daft_vllm.errors import OptionError

_WHOLE = r"^(0|-?[1-9][0-9]{0,17}|-?[1-8][0-9]{18})$"
_NUMBER = (
    r"^(-?((0|[1-9][0-9]{0,14})(\.[0-9]*)?|\.[0-9]+)"
    r"|-?[0-9](\.[0-9]*[eE][+-]?|[eE][+-])[0-9]{1,3}"
    r"|[+-]?(?i:nan|inf|infinity))$"
)
_BOOLEAN = r"^(true|false|True|False|TRUE|FALSE)$"
TYPES: Mapping[str, tuple[DataType, str]] = {
    "whole": (DataType.int64(), _WHOLE),
    "number": (DataType.float64(), _NUMBER),
    "boolean": (DataType.bool(), _BOOLEAN),
}
"""What a column may be beside text: the type, and what every cell of it looks like.

These are the forms that the type gives back. Not among them are ``007`` and ``+5``; whole numbers of more digits than
the type keeps; and ``5e12``, which may be an identifier.
"""


def read_delimited(paths: Sequence[str], delimiter: str, shown: str, *, keep_empty: bool) -> DataFrame:
    """Return the table in CSV or TSV files that have the same columns.

    Args:
        paths: the files or URLs. Special characters of globs are escaped.
        delimiter: what is between two cells.
        shown: how the user wrote the input.
        keep_empty: whether an empty cell of a column of text is an empty text. Else it is null.

    Raises:
        OptionError: a column is there twice, a file is empty, or not in UTF-8.
    """
    sampled = daft.read_csv(paths[0], delimiter=delimiter).schema()
    names = sampled.column_names()
    if not names:
        raise OptionError(f"the input {shown!r} is empty.")
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise OptionError(f"the input {shown!r} has two columns {twice[0]!r}: rename one in its first line.")
    text = DataType.string()
    for field in sampled:
        if field.dtype.is_binary():
            raise OptionError(not_in_utf8(shown, f" (column {field.name!r})"))
    cells = daft.read_csv(list(paths), delimiter=delimiter, infer_schema=False, schema=dict.fromkeys(names, text))
    # A column of which the first rows are texts is text.
    types = _types(cells, [one.name for one in sampled if not one.dtype.is_string() and not one.dtype.is_null()])
    filled = {name: when(col(name) != lit(""), col(name)) for name in names}
    made = {name: filled[name].cast(dtype) for name, dtype in types.items()}
    return cells.with_columns(made if keep_empty else {**filled, **made})


def not_in_utf8(shown: str, where: str = "") -> str:
    """Return what to say of an input that is not in UTF-8, ``where`` in it if that is known."""
    encoding = "latin1"
    with contextlib.suppress(OSError), open(shown, "rb") as file:
        encoding = "utf-16" if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else encoding
    return (
        f"the input {shown!r} is not in UTF-8{where}: convert it, for example with iconv -f {encoding} -t utf-8 "
        f"{shlex.quote(shown)}."
    )


def _types(cells: DataFrame, names: Sequence[str]) -> dict[str, DataType]:
    """Return the types of those columns that aren't text, by all their cells."""
    if not names:
        return {}
    wrong = {
        f"{i} {kind}": when((col(name) != lit("")) & ~col(name).regexp(pattern), lit(1)).otherwise(lit(0))
        for i, name in enumerate(names)
        for kind, (_, pattern) in TYPES.items()
    }
    counted = cells.select(*(one.alias(key) for key, one in wrong.items())).sum(*wrong).to_pydict()
    found: dict[str, DataType] = {}
    for i, name in enumerate(names):
        fitting = [kind for kind in TYPES if not counted[f"{i} {kind}"][0]]
        if fitting:
            found[name] = TYPES[fitting[0]][0]
    return found
