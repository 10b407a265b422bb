"""What comes out of the engine: a row's text, or its error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from daft_vllm.engine.requests.toolbox import ToolAnswer
from daft_vllm.wording import safe_line

ErrorCode = Literal[
    "null_prompt",
    "blank_prompt",
    "empty_prompt",
    "prompt_too_long",
    "invalid_prompt",
    "invalid_media",
    "unavailable_media",
    "invalid_request",
    "truncated",
    "invalid_output",
    "format_failed",
    "engine_error",
    "timeout",
    "deadline",
]
"""Why a row has no value.

``null_prompt``: the prompt was null. ``blank_prompt``: it was blank, and ``skip_blank`` was asked for.
``empty_prompt``: it had neither text nor media. ``prompt_too_long``: it leaves no room for an answer in the model's
context. ``invalid_prompt``: the chat template or the tokenizer refused it.
``invalid_media``: an image or another medium of the prompt can't be read, or is of a kind that the model doesn't take.
``unavailable_media``: a medium can't be fetched, or must not be fetched. ``invalid_request``: vLLM or the engine
refused the row's options. ``truncated``: a guided answer was cut off before it was complete. ``invalid_output``: a
guided answer does not satisfy its format. ``format_failed``: the library that enforces the format gave up on this
answer. ``engine_error``: vLLM failed on this row and continued, or died of it again and again. ``timeout``: it was
inside vLLM for longer than ``row_timeout``. ``deadline``: the query's ``deadline`` came before its answer.
"""

NOT_ASKED: tuple[ErrorCode, ...] = ("null_prompt", "blank_prompt")
"""Codes of rows that were not asked, which is no failure."""


QUOTES_THE_ROW: tuple[ErrorCode, ...] = ("invalid_prompt", "invalid_output")
"""Codes whose messages may hold part of a prompt or of an answer. These are logged at debug level only."""

MOST = 500
"""Characters of the message of a row's error. It may hold what the row, a file or a server said."""


class _ErrorFields(NamedTuple):
    code: ErrorCode
    message: str


class ErrorValue(_ErrorFields):
    """A row's failure as a value: a code to group by and a message that says what to do.

    The message is one line of at most ``MOST`` characters, without characters that a terminal could take for commands.
    """

    __slots__ = ()

    def __new__(cls, code: ErrorCode, message: str) -> ErrorValue:
        """Return the error. The message is cut."""
        return super().__new__(cls, code, safe_line(message, MOST))

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class Outcome(NamedTuple):
    """The result of one row: a text, an error, or both.

    Attributes:
        text: what the model wrote. It is kept even if ``error`` says it can't be used. None if nothing was generated.
        finish_reason: vLLM's reason, ``stop`` or ``length``; None if nothing was generated.
        stop_reason: the text of ``stop`` or the token of ``stop_token_ids`` that ended the answer. None: neither did.
        prompt_tokens: tokens of the rendered prompt. 0 if it was never tokenized.
        cached_tokens: prompt tokens that came from the prefix cache.
        completion_tokens: tokens generated.
        queue_seconds: how long the row waited before vLLM took it. 0 if it never waited.
        seconds: how long vLLM had the row. 0 if it didn't: nothing was generated, or an equal row's answer was taken.
        error: why there is no usable answer, or None.
        reasoning: what the model thought before it answered; None if it was not asked to think.
        tool_answer: the answer in parts, for a row with tools.
    """

    text: str | None = None
    finish_reason: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    queue_seconds: float = 0.0
    error: ErrorValue | None = None
    reasoning: str | None = None
    tool_answer: ToolAnswer | None = None
    stop_reason: str | int | None = None
    seconds: float = 0.0

    @classmethod
    def failed(cls, code: ErrorCode, message: str, *, prompt_tokens: int = 0) -> Outcome:
        """Return the outcome of a row for which nothing was generated."""
        return cls(error=ErrorValue(code, message), prompt_tokens=prompt_tokens)


NO_PROMPT = Outcome.failed("null_prompt", "the prompt is null")
"""The outcome of a row without a prompt."""


def count_by_code(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """Count the failed rows of ``outcomes`` by error code, most frequent first."""
    counts: dict[str, int] = {}
    for outcome in outcomes:
        if outcome.error is not None:
            counts[outcome.error.code] = counts.get(outcome.error.code, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))
