"""Prompt templates over columns: ``"Summarise: {text}"``."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Iterable
from typing import NamedTuple

import daft
from daft import DataFrame, DataType, col, lit

from daft_vllm.dtypes import holds
from daft_vllm.errors import OptionError, suggest

_BRACES = re.compile(r"\{\{|\}\}|\{(?P<name>[^{}]*)\}|[{}]")
_DOUBLE_THEM = "If the braces are meant as text, double them: {{ and }}."


class TemplatePart(NamedTuple):
    """Literal text, and the column that follows it. None follows the last part."""

    text: str
    column: str | None


def parse_template(template: str, columns: Iterable[str], *, needs_column: bool = True) -> list[TemplatePart]:
    """Split a template into its parts. Doubled braces stand for braces.

    Args:
        template: the text.
        columns: the names that may be fields.
        needs_column: whether a template without a field is an error.

    Raises:
        OptionError: a field is not one of ``columns``, a brace has no partner, or the template has no field.
    """
    names, parts = list(columns), []
    text, end = "", 0
    for brace in _BRACES.finditer(template):
        text += template[end : brace.start()]
        end = brace.end()
        name = brace["name"]
        if brace[0] in ("{{", "}}"):
            text += brace[0][0]
        elif name in names:
            parts.append(TemplatePart(text, name))
            text = ""
        elif name is not None:
            raise OptionError(_not_a_column(name, names))
        else:
            at = template[brace.start() : brace.start() + 20]
            raise OptionError(
                f"the prompt {_short(template)!r} has a brace without its partner, at {at!r}. {_DOUBLE_THEM} Columns: "
                f"{', '.join(names)}."
            )
    parts.append(TemplatePart(text + template[end:], None))
    if needs_column and len(parts) == 1:
        raise OptionError(f"the prompt {_short(template)!r} names no column: write {_likely_field(template, names)}.")
    return parts


def _short(template: str) -> str:
    return template if len(template) <= 80 else f"{template[:80]}..."


def _not_a_column(written: str, names: list[str]) -> str:
    """Say what to write in place of a field. Advice on braces is for what doesn't look like a column's name."""
    columns = f"Columns: {', '.join(names)}." if names else "The table has no columns."
    column = re.split(r"[.\[!:]", written, maxsplit=1)[0].strip()
    if column in names and column:
        parts = "" if column == written.strip() else " A field has no parts and no format."
        return f"the prompt's field {{{written}}} is not a column: write {{{column}}}.{parts}"
    near = suggest(written, names)
    braces = "" if near or re.fullmatch(r"\w+", written) else f" {_DOUBLE_THEM}"
    return f"the prompt's field {{{written}}} is not a column.{near} {columns}{braces}"


def _likely_field(template: str, names: list[str]) -> str:
    """Return the field that a template without one may have meant: a column that it names without braces, or in two."""
    if not names:
        return "{text}"
    meant = next((name for name in names if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", template)), names[0])
    return f"{{{meant}}}, in single braces" if f"{{{{{meant}}}}}" in template else f"{{{meant}}}"


def text_of(name: str, dtype: DataType) -> daft.Expression:
    """Return a column as it goes into a prompt: lists, structs and maps as JSON, dates and durations in ISO 8601.

    Raises:
        OptionError: values of this type have no text.
    """
    if holds(dtype, _has_no_text):
        raise OptionError(
            f"the prompt's field {{{name}}} is of type {dtype}, which is no text. Images go beside the prompt "
            f"(--images {name}, or image(col({name!r}))); make a text of anything else first."
        )
    column = col(name)
    if dtype.is_date() or dtype.is_duration():  # Daft's cast gives 2020-1-1, and none for durations
        return column.serialize("json").regexp_replace('"', "")
    nested = dtype.is_list() or dtype.is_fixed_size_list() or dtype.is_struct() or dtype.is_map()
    return column.serialize("json") if nested else column.cast(DataType.string())


def _has_no_text(dtype: DataType) -> bool:
    return bool(
        dtype.is_binary()
        or dtype.is_fixed_size_binary()
        or dtype.is_image()
        or dtype.is_fixed_shape_image()
        or dtype.is_tensor()
        or dtype.is_fixed_shape_tensor()
        or dtype.is_sparse_tensor()
        or dtype.is_fixed_shape_sparse_tensor()
        or dtype.is_embedding()
        or dtype.is_file()
        or dtype.is_python()
    )


def template(text: str, df: DataFrame, *, needs_column: bool = True) -> daft.Expression:
    """Return a column of prompts, filled from the columns of ``df``: ``template("Summarise {title}: {body}", df)``.

    Values are inserted as ``text_of`` gives them; braces in them have no meaning. A row with a null in one of the
    columns has a null prompt.

    Args:
        text: the template. Doubled braces stand for braces.
        df: the table.
        needs_column: whether a template without a field is an error.

    Raises:
        OptionError: a field is not a column, or has no text; or the template has no field.
    """
    pieces: list[daft.Expression] = []
    schema = df.schema()
    for between, column in parse_template(text, schema.column_names(), needs_column=needs_column):
        if between:
            pieces.append(lit(between))
        if column is not None:
            pieces.append(text_of(column, schema[column].dtype))
    return functools.reduce(operator.add, pieces or [lit("")])
