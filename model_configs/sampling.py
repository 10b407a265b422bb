"""The sampling options that a model's makers recommend: one set of numbers for each of the model's modes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Mode = Literal["thinking", "not_thinking"]
WORDS: dict[Mode, str] = {"thinking": " for answers with thinking", "not_thinking": " for answers without thinking"}

NUMBERS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)
"""The sampling options that makers recommend, by vLLM's names. Others, such as ``max_tokens``, are the job's."""


@dataclass(frozen=True)
class Sampling:
    """What the makers recommend, by mode. A mode that isn't named is one that the model doesn't have.

    Args:
        source: where the numbers come from, and where none were found.
        modes: the numbers of each mode by vLLM's names. None: the makers recommend none for this mode.

    Raises:
        ValueError: no source is given, or an option isn't one of ``NUMBERS``, isn't a number, or lacks a temperature.
            Its range is checked where the numbers are used.
    """

    source: Sequence[str]
    modes: Mapping[Mode, Mapping[str, float] | None]

    def __post_init__(self) -> None:
        if isinstance(self.source, str) or not self.source:
            raise ValueError("[sampling] needs source = [...]: where the numbers come from, or where none were found.")
        for mode, numbers in self.modes.items():
            if numbers is None:
                continue
            if "temperature" not in numbers:
                raise ValueError(f"[sampling] {mode} needs a temperature: without one the others have no effect.")
            for name, value in numbers.items():
                if name not in NUMBERS:
                    raise ValueError(f"[sampling] {mode} has {name!r}. It takes {', '.join(NUMBERS)}.")
                if isinstance(value, bool) or not isinstance(value, (int, float)):
                    raise ValueError(f"[sampling] {mode} needs a number for {name}, got {value!r}.")
