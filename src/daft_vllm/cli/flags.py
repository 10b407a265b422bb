"""The words of ``prompt()`` as the command has them."""

from __future__ import annotations

import functools
import json
import re

from daft_vllm.engine.requests.sampling import SamplingOptions
from daft_vllm.udf.options import OPTION_NAMES

_VALUE = r"""\{[^{}]*\}|"[^"]*"|'[^']*'|-?\w+(?:\.\w+)*(?![\w(])|(?=[\s,.;:)]|$)"""


def as_flags(text: str) -> str:
    """Return a message in which options of ``prompt()`` are those of the command: ``gpus=2`` is ``--gpus 2``."""
    return _pattern().sub(lambda found: _flag(found[1], found[2]), text)


@functools.cache
def _pattern() -> re.Pattern[str]:
    from daft_vllm.cli.options import ELSEWHERE

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
