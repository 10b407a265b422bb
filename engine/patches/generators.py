"""Random number generators that vLLM can take a step back with, on a CPU too.

A row with a seed whose prompt vLLM 0.32 computes in several steps draws a token at the end of each, and takes all but
the last draw back with ``Generator.set_offset``, which torch has for GPUs only: on a CPU the core dies of it.
"""

from __future__ import annotations

from typing import Any


def register_cpu_generators() -> None:
    """Make generators of this process rewindable: for vLLM's core process on a CPU."""
    import torch

    if getattr(torch.Generator, "rewinds", False):
        return

    class RewindingGenerator(torch.Generator):  # type: ignore[misc]  # torch's types are not followed
        rewinds = True

        def get_offset(self) -> int:
            """Return a number that ``set_offset`` takes."""
            return 0

        def set_offset(self, offset: int) -> None:
            """Go back to the beginning: what is taken back comes before the first token that is kept.

            Except for a row that vLLM put back and computes again, which draws the same numbers a second time.
            """
            self.manual_seed(self.initial_seed())

    generator: Any = RewindingGenerator
    torch.Generator = generator
