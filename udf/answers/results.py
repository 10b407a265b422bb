"""Turns outcomes and parsed answers into a column."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from daft import DataType, Series

from daft_vllm.engine import ErrorValue, Outcome
from daft_vllm.engine.requests.outcome import NOT_ASKED, QUOTES_THE_ROW
from daft_vllm.udf.answers.return_format import Parsed, invalid, reason_of

DETAILS: dict[str, tuple[DataType, Callable[[Outcome], Any]]] = {
    "text": (DataType.string(), lambda outcome: outcome.text),
    "reasoning": (DataType.string(), lambda outcome: outcome.reasoning),
    "finish_reason": (DataType.string(), lambda outcome: _skipped(outcome.error) or outcome.finish_reason),
    "prompt_tokens": (DataType.int64(), lambda outcome: outcome.prompt_tokens),
    "cached_tokens": (DataType.int64(), lambda outcome: outcome.cached_tokens),
    "completion_tokens": (DataType.int64(), lambda outcome: outcome.completion_tokens),
    "queue_seconds": (DataType.float64(), lambda outcome: outcome.queue_seconds),
}
"""The fields that ``details=True`` adds to the value: the type of each, and how to read it from an outcome."""


def _skipped(error: ErrorValue | None) -> str | None:
    """Return why a row was not asked; None if it was."""
    return error.code if error is not None and error.code in NOT_ASKED else None


def details_type(value: DataType) -> DataType:
    """Return the struct that ``details=True`` gives for values of type ``value``."""
    fields = {"value": value, **{name: dtype for name, (dtype, _) in DETAILS.items()}, "error": DataType.string()}
    struct: DataType = DataType.struct(fields)
    return struct


def with_stop_named(parsed: Parsed, outcome: Outcome) -> Parsed:
    """Name the stop text or token that ended an answer before its format was complete."""
    if parsed.error is None or parsed.error.code != "invalid_output" or outcome.stop_reason is None:
        return parsed
    option = "stop" if isinstance(outcome.stop_reason, str) else "stop_token_ids"
    message = (
        f"{outcome.stop_reason!r} in {option} ended the answer before it was complete. Leave out of {option} what "
        f"return_format needs ({parsed.error.message})"
    )
    return Parsed(None, ErrorValue(parsed.error.code, message))


def value_array(parsed: list[Parsed], dtype: DataType) -> pa.Array:
    """Return the values as an Arrow array. A value that doesn't fit the type becomes an error in ``parsed``.

    Validated values fit. A value from a serializer that the user wrote may not.
    """
    arrow_type = dtype.to_arrow_dtype()
    try:
        return pa.array([one.value for one in parsed], type=arrow_type)
    except Exception:  # a value may be of a user's class, which may raise anything
        for i, one in enumerate(parsed):
            try:
                pa.array([one.value], type=arrow_type)
            except Exception as e:
                parsed[i] = invalid(f"the column can't hold the value: {reason_of(e)}")
        return pa.array([one.value for one in parsed], type=arrow_type)


def result_series(outcomes: Sequence[Outcome], parsed: Sequence[Parsed], values: Any, dtype: DataType) -> Series:
    """Return the column with details. ``dtype`` is the type that ``details_type`` returned."""
    columns = {"value": values}
    for name, (field, content) in DETAILS.items():
        columns[name] = pa.array([_encodable(content(outcome)) for outcome in outcomes], type=field.to_arrow_dtype())
    failures = [None if one.error is None or _skipped(one.error) else str(one.error) for one in parsed]
    columns["error"] = pa.array(failures, type=pa.large_string())
    struct = pa.StructArray.from_arrays(list(columns.values()), names=list(columns))
    return Series.from_arrow(struct, dtype=dtype)


def _encodable(value: Any) -> Any:
    """Return a value for Arrow. Half of a surrogate pair, which its texts can't hold, is written as an escape."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def first_row(failed: Mapping[int, ErrorValue], column: str, *, quote: bool = True) -> str:
    """Return which row of a batch failed first, and why.

    Args:
        failed: the errors by row number, at least one.
        column: the batch's column.
        quote: whether the reason may hold what the row, or its answer, says.
    """
    row, error = next(iter(failed.items()))
    why = error if quote or error.code not in QUOTES_THE_ROW else f"{error.code} (details=True has the reason)"
    return f"the first is row {row} of a batch of {column!r}: {why}"
