"""Prompt templates over columns: ``"Summarise: {text}"``."""

from __future__ import annotations

import functools
import operator
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


def parse_template(template: str, columns: Iterable[str]) -> list[TemplatePart]:
    """Split a template into its parts. Doubled braces stand for braces.

    Raises:
        OptionError: a field is not one of ``columns``, or the template has none.
    """
    names = list(columns)
    parts: list[TemplatePart] = []
    try:
        for text, name, spec, conversion in string.Formatter().parse(template):
            if name is not None and (spec or conversion or name not in names):
                raise OptionError(
                    f"the prompt's field {{{name}}} is not a column.{suggest(name, names)} "
                    f"Columns: {', '.join(names)}. Write {{{{ and }}}} for braces."
                )
            parts.append(TemplatePart(text, name))
    except OptionError:  # which is a ValueError too
        raise
    except ValueError as e:
        raise OptionError(f"the prompt {template!r} cannot be read: {e}. Write {{{{ and }}}} for braces.") from None
    if not any(part.column for part in parts):
        raise OptionError(f"the prompt {template!r} names no column: write {{{names[0] if names else 'text'}}}.")
    return parts


def template(text: str, df: DataFrame) -> daft.Expression:
    """Return a column of prompts, filled from the columns of ``df``: ``template("Summarise {title}: {body}", df)``.

    Values are inserted unchanged; braces in them have no meaning. A row with a null in one of the columns has a null
    prompt.

    Raises:
        OptionError: a field is not a column, or the template has none.
    """
    pieces: list[daft.Expression] = []
    for between, column in parse_template(text, df.schema().column_names()):
        if between:
            pieces.append(lit(between))
        if column is not None:
            pieces.append(col(column).cast(daft.DataType.string()))
    return functools.reduce(operator.add, pieces)
