"""The words of ``prompt()`` as the command has them."""

from __future__ import annotations

import functools
import json
import re

from daft_vllm.engine.requests.sampling import SamplingOptions
from daft_vllm.udf.options import OPTION_NAMES

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
    "progress_folder": "the command's own",
    "sampling": "an option for each",
}
"""Options of ``prompt()`` that a command has in another way, or not at all."""
_VALUE = r"""\{[^{}]*\}|"[^"]*"|'[^']*'|-?\w+(?:\.\w+)*(?![\w(])|(?=[\s,.;:)]|$)"""


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
