"""Lets vLLM undo the draws of a random generator, on a CPU too.

vLLM 0.32 may compute a prompt in several steps. If the row has a seed, vLLM draws a token at the end of each step. It
undoes every draw but the last with ``Generator.set_offset``. torch has this method for GPUs only: on a CPU it raises an
error, and the core dies.
"""

from __future__ import annotations

from typing import Any


def register_cpu_generators() -> None:
    """Let the random generators of this process go back to their beginning. For vLLM's core process on a CPU."""
    import torch

    if getattr(torch.Generator, "rewinds", False):
        return

    class RewindingGenerator(torch.Generator):  # type: ignore[misc]  # torch's types are not followed
        rewinds = True

        def get_offset(self) -> int:
            """Return a number that ``set_offset`` takes."""
            return 0

        def set_offset(self, offset: int) -> None:
            """Go back to the beginning, whatever the offset: vLLM undoes draws only before the first token it keeps.

            The exception is a row that vLLM preempted and computes again: it draws the same numbers a second time.
            """
            self.manual_seed(self.initial_seed())

    generator: Any = RewindingGenerator
    torch.Generator = generator
