"""One benchmark job: a frozen list of prompts, and what to generate for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa


@dataclass(frozen=True)
class Job:
    """Work for one run of one arm. Prompts are raw text: no arm applies a chat template.

    Args:
        workload: name of the workload it comes from.
        seed: seed of its random texts; jobs of different seeds share no first block of tokens.
        prompts: one text per row, in the order of the table.
        max_tokens: longest answer in tokens, of all rows or row by row.
        ignore_eos: generate ``max_tokens`` tokens even if the model ends its text, so that output lengths are fixed.
        schema: JSON Schema of every answer. None: free text.
        table: the columns that ``prompts`` were rendered from. None: there is no table behind the prompts.
        template: the format string, over the table's column names, that rendered them.
    """

    workload: str
    seed: str
    prompts: tuple[str, ...]
    max_tokens: int | tuple[int, ...]
    ignore_eos: bool = True
    schema: Mapping[str, Any] | None = None
    table: pa.Table | None = field(default=None, compare=False)
    template: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.max_tokens, tuple) and len(self.max_tokens) != len(self.prompts):
            raise ValueError(f"{len(self.prompts)} prompts, but {len(self.max_tokens)} values of max_tokens")

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.prompts)

    def limits(self) -> list[int]:
        """Return ``max_tokens`` row by row."""
        return [self.max_tokens] * self.rows if isinstance(self.max_tokens, int) else list(self.max_tokens)
