"""Tools that a model may call, and its calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Toolbox:
    """Tools that the model may call. The chat template describes them, in the format that the model was trained on.

    Args:
        tools: the JSON text of each tool, in OpenAI's form: ``{"type": "function", "function": {...}}``.
        parser: vLLM's name for the parser that reads the model's calls, ``"hermes"`` for example.
    """

    tools: tuple[str, ...]
    parser: str


class ToolCall(NamedTuple):
    """One call: the tool's name, and its arguments as JSON text, not yet validated."""

    name: str
    arguments: str


class ToolAnswer(NamedTuple):
    """An answer in parts: the text beside its calls (None if there is none), and the calls."""

    content: str | None
    calls: tuple[ToolCall, ...]
