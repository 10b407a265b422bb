"""What is changed in vLLM's sampler for rows with guesses beside other rows. For vLLM's core process, on a CPU."""

from __future__ import annotations

import functools
from copy import copy
from typing import TYPE_CHECKING, Any

from daft_vllm.engine.drafts.start import is_ours

if TYPE_CHECKING:
    from torch import Tensor


def change_sampler() -> None:
    """Change it. vLLM does so as its core starts."""
    import vllm.v1.sample.logits_processor as processors
    from vllm.v1.sample import rejection_sampler
    from vllm.v1.worker import gpu_model_runner

    made = _all_processors(processors.build_logitsprocs)
    processors.build_logitsprocs = gpu_model_runner.build_logitsprocs = made
    rejection_sampler.expand_batch_to_tokens = expand_to_tokens


def is_changed() -> bool:
    """Whether ``change_sampler`` was called in this process."""
    from vllm.v1.sample import rejection_sampler

    return rejection_sampler.expand_batch_to_tokens is expand_to_tokens


def _all_processors(theirs: Any) -> Any:
    """Return vLLM's function, changed so that rows can use ``min_p`` and ``logit_bias`` beside rows with guesses.

    vLLM 0.32 leaves these out if it verifies tokens, because it can't apply them to tokens that are guessed. Rows that
    use them get no guesses here. Their tokens are sampled as all others, by the sampler that has these options.
    """

    @functools.wraps(theirs)
    def build_logitsprocs(vllm_config: Any, *args: Any, **options: Any) -> Any:
        if is_ours(vllm_config.speculative_config):
            vllm_config = copy(vllm_config)
            vllm_config.speculative_config = None
        return theirs(vllm_config, *args, **options)

    return build_logitsprocs


def expand_to_tokens(
    x: Tensor, cu_num_tokens: Tensor, num_tokens: int, replace_from: float = 0, replace_to: float = 0
) -> Tensor:
    """Return each row's value once for each of its guesses.

    In place of vLLM 0.32's function, whose CPU kernel reads numbers as 64-bit integers and writes to a copy: the result
    is memory that nobody has written to. All rows of a step in which one draws would be sampled with it.

    Args:
        x: values of the rows, shape (rows,).
        cu_num_tokens: how many guesses the rows up to each one have, shape (rows,).
        num_tokens: how many there are in all.
        replace_from: a value that becomes another one.
        replace_to: that other one.

    Returns:
        Shape (num_tokens,).
    """
    counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    if replace_from != replace_to:
        x = x.masked_fill(x == replace_from, replace_to)
    return x.repeat_interleave(counts, output_size=num_tokens)
