"""How vLLM ended a row: its output as an outcome, with the reason where there is no usable answer."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from daft_vllm.engine.requests.outcome import ErrorValue, Outcome
from daft_vllm.engine.scheduling.row import Row

if TYPE_CHECKING:
    from vllm import RequestOutput


def outcome_of(output: RequestOutput, row: Row, end_of_text: Collection[int]) -> Outcome:
    """Return a finished row's outcome.

    Args:
        output: vLLM's output of the row.
        row: the row.
        end_of_text: the tokens that end a text for this model.
    """
    completion = output.outputs[0]
    error = None
    if completion.finish_reason not in ("stop", "length"):
        error = _failed(row, completion.finish_reason, end_of_text)
    elif row.constrained and completion.finish_reason == "length":
        error = ErrorValue(
            "truncated",
            f"the answer was cut off after {len(completion.token_ids)} tokens, before it was complete: "
            "raise max_tokens, or max_model_len if the prompt fills the context",
        )
    return Outcome(
        text=completion.text,
        finish_reason=completion.finish_reason,
        stop_reason=completion.stop_reason,
        prompt_tokens=row.prompt_tokens,
        cached_tokens=output.num_cached_tokens or 0,
        completion_tokens=len(completion.token_ids),
        queue_seconds=row.queue_seconds,
        seconds=time.monotonic() - row.sent_at,
        error=error,
    )


def _failed(row: Row, finish_reason: str | None, end_of_text: Collection[int]) -> ErrorValue:
    """Return the error of a row that vLLM ended, as it does if no token is left that the row's format allows."""
    if not row.constrained:
        return ErrorValue("engine_error", f"vLLM ended the row with finish reason {finish_reason!r}")
    given = {
        "bad_words": row.params.bad_words,
        "logit_bias": row.params.logit_bias,
        "stop_token_ids": set(row.params.stop_token_ids or ()) - set(end_of_text),
    }
    excluding = [name for name, value in given.items() if value]
    if excluding:
        return ErrorValue(
            "invalid_request",
            f"{' and '.join(excluding)} left no token that return_format allows after the text so far: leave out what "
            "the format needs",
        )
    return ErrorValue("format_failed", "the library that enforces return_format allowed no token after the text so far")
