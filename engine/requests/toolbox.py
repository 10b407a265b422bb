"""Tools that a model may call, and its calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Toolbox:
    """Tools that the model may call, as its chat template tells it, in what format it was trained to.

    Args:
        tools: JSON of each, in OpenAI's form: ``{"type": "function", "function": {...}}``.
        parser: vLLM's name of the parser that reads the model's calls, ``"hermes"`` for example.
    """

    tools: tuple[str, ...]
    parser: str


class ToolCall(NamedTuple):
    """One call: the tool's name, and its arguments as JSON text, not yet validated."""

    name: str
    arguments: str


class ToolAnswer(NamedTuple):
    """What an answer says beside its calls, None if nothing, and its calls."""

    content: str | None
    calls: tuple[ToolCall, ...]
