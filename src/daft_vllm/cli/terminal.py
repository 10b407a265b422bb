"""What the commands of ``daft-vllm`` have in common."""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import sys
from pathlib import Path
from typing import Any, TextIO

import typer
from rich.console import Console

from daft_vllm.engine.requests.sampling import SamplingOptions
from daft_vllm.udf.options import OPTION_NAMES, option_help
from daft_vllm.udf.progress.repeats import RepeatsFilter

console = Console(stderr=True)

GPU = "Card to plan for, as people or the driver call it: L4, A100-80, RTX 4090, NVIDIA H100 NVL."
GPU_MEMORY = "Memory of the card in GB: for a card that isn't known, or a part of one."
ELSEWHERE = {
    "return_format": "--schema and --choices",
    "tools": "only in Python, because functions are Python's",
    "tool_choice": "only with tools",
    "tool_parser": "only with tools",
    "parallel_tool_calls": "only with tools",
    "turns": "only in Python, because they are columns",
    "files": "--files",
    "use_process": "--keep-order",
    "on_error": "--on-error",
    "details": "--error-column",
    "row_key": "--key",
    "progress_folder": "the command's own",
    "sampling": "an option for each",
}
"""Options of ``prompt()`` that a command has in another way, or not at all."""
_VALUE = r"""\{[^{}]*\}|"[^"]*"|'[^']*'|-?\w+(?:\.\w+)*(?![\w(])|(?=[\s,.;:)]|$)"""


def option(name: str, more: str = "", **limits: Any) -> Any:
    """Return an option of the command for an option of ``prompt()``, with the line of help from ``PromptOptions``.

    Args:
        name: the option's name in ``prompt()``.
        more: text to add to its help.
        limits: ``min`` and so on, for typer.
    """
    return typer.Option(help=f"{option_help(name)} {more}".strip(), **limits)


def return_format(schema: Path | None, choices: str | None) -> Any:
    """Return the ``return_format`` that the options ``--schema`` and ``--choices`` ask for."""
    if choices is not None:
        return [choice.strip() for choice in choices.split(",")]
    if schema is None:
        return None
    from daft_vllm.errors import OptionError

    if str(schema).lstrip().startswith("{"):
        raise OptionError("--schema is the name of a file: save the schema, and pass --schema answer.json.")
    try:
        text = schema.read_text(encoding="utf-8")
    except OSError as e:
        raise OptionError(f"--schema: {schema} can't be read: {e.strerror}.") from None
    return json_object("--schema", text)


def engine_args_of(text: str) -> dict[str, Any]:
    """Return the arguments in ``--engine-args``: JSON, or ``@file`` with an overlay that ``daft-vllm tune`` wrote."""
    if text.startswith("@"):
        from daft_vllm.tuning.tune import tuned_args

        return tuned_args(text[1:])
    return json_object("--engine-args", text, """--engine-args '{"max_model_len": 4096}'""")


def json_object(option: str, text: str, example: str = "") -> dict[str, Any]:
    """Return the JSON object in an option's text. Raise ``OptionError`` for anything else, with an example."""
    from daft_vllm.annotations import words
    from daft_vllm.errors import OptionError

    hint = f" Write for example {example}." if example else ""
    try:
        value = json.loads(text)
    except ValueError as e:
        raise OptionError(f"{option} is not JSON: {e}.{hint}") from None
    if not isinstance(value, dict):
        raise OptionError(f"{option} is a JSON object, got {words(type(value))}.{hint}")
    return value


def quiet() -> None:
    """Keep the screen for our progress display: hide Daft's bars and names of queries, unless the user has set them."""
    os.environ.setdefault("DAFT_PROGRESS_BAR", "0")
    os.environ.setdefault("DAFT_SHOW_QUERY_ID", "0")
    handler = _ScreenHandler()
    handler.addFilter(RepeatsFilter())
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[handler])


class _ScreenHandler(logging.Handler):
    """Prints to the ``sys.stderr`` of the moment, which while a bar is drawn puts the text above it."""

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr)


def own_cause(error: BaseException) -> BaseException | None:
    """Return the error of daft-vllm that Daft has wrapped, if there is one."""
    from daft_vllm.errors import DaftVLLMError

    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, DaftVLLMError):
        seen = seen.__cause__ or seen.__context__
    return seen


def fail(message: str, then: str = "") -> None:
    """Print an error message, and on another line what to do ``then``, and end with exit status 1."""
    message = as_flags(message)
    console.print(f"error: {message}", style="red", highlight=False, markup=False, soft_wrap=True)
    if then:
        console.print(then, highlight=False, markup=False, soft_wrap=True)
    raise typer.Exit(1)


def as_flags(text: str) -> str:
    """Return a message in which options of ``prompt()`` are those of the command: ``gpus=2`` is ``--gpus 2``."""
    return _pattern().sub(lambda found: _flag(found[1], found[2]), text)


@functools.cache
def _pattern() -> re.Pattern[str]:
    names = [name for name in (*OPTION_NAMES, *SamplingOptions.model_fields) if name not in ELSEWHERE]
    return re.compile(rf"(?<![\w-])({'|'.join(sorted(names, key=len, reverse=True))})=({_VALUE})")


def _flag(name: str, value: str) -> str:
    words = name.replace("_", "-")
    if value in ("True", "False"):
        return f"--{words}" if value == "True" else f"--no-{words}"
    if value.startswith("{"):
        text = value.replace("'", '"')
        try:
            json.loads(text)
        except ValueError:  # it has dots in the place of something
            return f"{name}={value}"
        value = f"'{text}'"
    return f"--{words} {value}".rstrip()
