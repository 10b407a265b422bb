"""Prompt templates over columns: ``"Summarise: {text}"``."""

from __future__ import annotations

import functools
import operator
import re
import string
from collections.abc import Iterable
from typing import NamedTuple

import daft
from daft import DataFrame, col, lit

from daft_vllm.errors import OptionError, suggest


class TemplatePart(NamedTuple):
    """Literal text, and the column that follows it. No column follows a doubled brace, or the end of the template."""

    text: str
    column: str | None


def parse_template(template: str, columns: Iterable[str], *, needs_column: bool = True) -> list[TemplatePart]:
    """Split a template into its parts. Doubled braces stand for braces.

    Args:
        template: the text.
        columns: the names that may be fields.
        needs_column: whether a template without a field is an error.

    Raises:
        OptionError: a field is not one of ``columns``, or the template has none.
    """
    names = list(columns)
    parts: list[TemplatePart] = []
    try:
        fields = list(string.Formatter().parse(template))
    except ValueError as e:
        raise OptionError(f"the prompt {template!r} cannot be read: {e}. Write {{{{ and }}}} for braces.") from None
    for text, name, spec, conversion in fields:
        if name is not None and (spec or conversion or name not in names):
            written = name + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "")
            raise OptionError(_not_a_column(written, names))
        parts.append(TemplatePart(text, name))
    if needs_column and not any(part.column for part in parts):
        raise OptionError(f"the prompt {template!r} names no column: write {{{names[0] if names else 'text'}}}.")
    return parts


def _not_a_column(written: str, names: list[str]) -> str:
    """Say what to write in place of a field. Advice on braces is for what doesn't look like a column's name."""
    columns = f"Columns: {', '.join(names)}." if names else "The table has no columns."
    near = suggest(written, names)
    braces = (
        "" if near or re.fullmatch(r"\w+", written) else " If the braces are meant as text, double them: {{ and }}."
    )
    return f"the prompt's field {{{written}}} is not a column.{near} {columns}{braces}"


def template(text: str, df: DataFrame, *, needs_column: bool = True) -> daft.Expression:
    """Return a column of prompts, filled from the columns of ``df``: ``template("Summarise {title}: {body}", df)``.

    Values are inserted unchanged; braces in them have no meaning. A row with a null in one of the columns has a null
    prompt.

    Args:
        text: the template. Doubled braces stand for braces.
        df: the table.
        needs_column: whether a template without a field is an error.

    Raises:
        OptionError: a field is not a column, or the template has none.
    """
    pieces: list[daft.Expression] = []
    for between, column in parse_template(text, df.schema().column_names(), needs_column=needs_column):
        if between:
            pieces.append(lit(between))
        if column is not None:
            pieces.append(col(column).cast(daft.DataType.string()))
    return functools.reduce(operator.add, pieces or [lit("")])
