"""Whether an engine guesses tokens, and how vLLM is told to verify them.

vLLM 0.32 verifies tokens in the sampler that speculative decoding has. It is switched on by a method that takes a class
of ours, which proposes nothing: the scheduler does, where the grammars are. The scheduler waits for each step
(``async_scheduling`` is off, as it always is on a CPU).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from daft_vllm.engine.setup.config import EngineConfig

OFF = "daft_vllm_no_drafts"
"""In ``SamplingParams.extra_args``: the row gets no guesses."""
PROPOSER = "daft_vllm.engine.drafts.proposer.NoProposer"
MOST_TOKENS = 16
"""The most guesses of a row in a step."""


def draft_args(config: EngineConfig, left_out: Collection[str]) -> dict[str, Any]:
    """Return the arguments of vLLM's engine with which it guesses. Empty: it doesn't.

    Args:
        config: how the engine is started.
        left_out: names of the patches of vLLM that are not applied.
    """
    if not config.draft or {"drafts", "executor"} & {*left_out}:
        return {}
    return {
        "scheduler_cls": "daft_vllm.engine.drafts.scheduler.DraftingScheduler",
        "speculative_config": {
            "method": "custom_class",
            "model": PROPOSER,
            "num_speculative_tokens": MOST_TOKENS,
        },
    }


def suits(model_config: Any) -> bool:
    """Whether vLLM can verify tokens of a model.

    A token that is dropped has to leave nothing behind. The state of a Mamba layer, or of linear attention, can't go
    back. Models with an encoder, and those that pool, write no tokens of this kind.
    """
    return (
        model_config.runner_type == "generate"
        and not model_config.is_hybrid
        and not model_config.is_attention_free
        and not model_config.has_inner_state
        and not model_config.is_encoder_decoder
        and not model_config.is_diffusion
    )


def is_ours(speculative_config: Any) -> bool:
    """Whether vLLM's ``SpeculativeConfig`` is that of an engine that guesses here."""
    return speculative_config is not None and speculative_config.model == PROPOSER
