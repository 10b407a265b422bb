"""Parts of a prompt: each is a column, marked with what it holds (images, sounds or documents)."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import daft

from daft_vllm.engine.requests.content import Message
from daft_vllm.errors import OptionError

PartKind = Literal["auto", "image", "audio", "document"]
"""What a column holds. ``"auto"`` decides by the column's type, and for bytes and files by their name or content."""


@dataclass(frozen=True)
class Part:
    """One part of a prompt.

    Args:
        kind: what the column holds.
        column: the column.
    """

    kind: PartKind
    column: daft.Expression


def image(column: daft.Expression) -> Part:
    """Say that a column of paths, URLs, files, bytes or arrays holds images; it may hold lists of them.

    Without ``image``, ``audio`` or ``document`` a string column is text.

    A photo from a file, or from its bytes, is turned upright as the camera says (EXIF). Daft's ``decode_image`` drops
    that: pass ``image(col("bytes"))``, not the decoded column, where photos may be sideways.
    """
    return Part("image", _column(column, "image"))


def audio(column: daft.Expression) -> Part:
    """Say that a column of paths, URLs, files or bytes holds sounds; it may hold lists of them."""
    return Part("audio", _column(column, "audio"))


def document(column: daft.Expression) -> Part:
    """Say that a column of paths, URLs, files or bytes holds documents; it may hold lists of them.

    Text, Markdown, HTML, CSV, JSON and XML become text, with the file's name above it. The pages of a PDF become
    images if the model takes images, and text otherwise.
    """
    return Part("document", _column(column, "document"))


Messages = daft.Expression | Part | Sequence[daft.Expression | Part]
"""The content of a message: a column, or several in order."""


def parts_of(messages: Messages) -> list[Part]:
    """Return the parts of a message that was passed to ``prompt``, in order.

    Raises:
        OptionError: ``messages`` is neither a column nor a list of columns.
    """
    if isinstance(messages, (daft.Expression, Part)):
        messages = [messages]
    if isinstance(messages, str):
        raise OptionError(f"prompt() takes a column, not a text. {_column_for(messages)}")
    if not isinstance(messages, Sequence) or not messages:
        got = "an empty list" if isinstance(messages, list) else type(messages).__name__
        raise OptionError(f"messages is a column, such as col('question'), or a list of columns, got {got}.")
    return [part if isinstance(part, Part) else Part("auto", _column(part, "a part")) for part in messages]


def turns_of(turns: Sequence[tuple[daft.Expression, Messages]]) -> list[tuple[daft.Expression, list[Part]]]:
    """Return the turns of a conversation: the column of an answer, and the parts of the message after it.

    Raises:
        OptionError: ``turns`` is not a list of such pairs.
    """
    found = []
    for turn in turns:
        if not isinstance(turn, tuple) or len(turn) != 2 or not isinstance(turn[0], daft.Expression):
            raise OptionError("turns is a list of pairs: the column of an answer, and the message that follows it.")
        found.append((turn[0].cast(daft.DataType.string()), parts_of(turn[1])))
    return found


def examples_of(examples: Sequence[tuple[str, Any]], write: Callable[[Any], str]) -> tuple[Message, ...]:
    """Return the messages of example questions and their answers.

    Args:
        examples: pairs of a question and its answer.
        write: writes an answer that isn't a string as JSON.

    Raises:
        OptionError: ``examples`` is not a list of such pairs, or an answer can't be written as JSON.
    """
    from pydantic_core import PydanticSerializationError

    messages: list[Message] = []
    for example in examples:
        if not isinstance(example, tuple) or len(example) != 2 or not isinstance(example[0], str):
            raise OptionError("examples is a list of pairs of a question and its answer, [('1 + 1?', 2)].")
        question, answer = example
        try:
            text = answer if isinstance(answer, str) else write(answer)
        except PydanticSerializationError as e:
            raise OptionError(f"the answer of the example {question!r} can't be written as JSON: {e}") from None
        messages += [Message("user", (question,)), Message("assistant", (text,))]
    return tuple(messages)


def _column(column: daft.Expression, what: str) -> daft.Expression:
    if not isinstance(column, daft.Expression):
        hint = f" {_column_for(column)}" if isinstance(column, str) else ""
        raise OptionError(f"{what} of the prompt is a column, got {type(column).__name__}.{hint}")
    return column


def _column_for(text: str) -> str:
    """Return what to write in the place of a text: a template's columns filled in, or else a text or a column."""
    try:
        found = list(string.Formatter().parse(text))
    except ValueError:  # single braces
        found = []
    fields = [name for _, name, _, _ in found if name is not None]
    plain = "".join(part + ("{}" if name is not None else "") for part, name, _, _ in found)
    if fields and all(re.fullmatch(r"\w+", name) for name in fields) and plain.count("{") == len(fields):
        columns = ", ".join(f"col({name!r})" for name in fields)
        return f"For a template: daft.functions.format({plain!r}, {columns})."
    return f"Write lit({text!r}) for text, col({text!r}) for a column."
