"""Lets vLLM undo the draws of a random generator, on a CPU too.

vLLM 0.32 may compute a prompt in several steps. If the row has a seed, vLLM draws a token at the end of each step. It
undoes every draw but the last with ``Generator.set_offset``. torch has this method for GPUs only: on a CPU it raises an
error, and the core dies.
"""

from __future__ import annotations

import functools
from typing import Any


def register_cpu_generators() -> None:
    """Let the random generators of this process undo their last draw. For vLLM's core process on a CPU."""
    import torch
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

    if getattr(torch.Generator, "rewinds", False):
        return

    class RewindingGenerator(torch.Generator):  # type: ignore[misc]  # torch's types are not followed
        rewinds = True
        before: Any = None

        def get_offset(self) -> int:
            """Return a number that ``set_offset`` takes."""
            return 0

        def set_offset(self, offset: int) -> None:
            """Undo the last draw, whatever the offset: vLLM undoes nothing else.

            A row that vLLM preempted has drawn before. So going back to the beginning would not do.
            """
            if self.before is None:
                self.manual_seed(self.initial_seed())
            else:
                self.set_state(self.before)

    generator: Any = RewindingGenerator
    torch.Generator = generator
    draw = TopKTopPSampler.forward_cpu

    @functools.wraps(draw)
    def remember_and_draw(self: Any, logits: Any, generators: Any, k: Any, p: Any) -> Any:
        for own in generators.values():
            own.before = own.get_state()  # 5 KB
        return draw(self, logits, generators, k, p)

    TopKTopPSampler.forward_cpu = remember_and_draw
