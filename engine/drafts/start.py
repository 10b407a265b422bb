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
_OTHERS = (
    "speculative_config",
    "scheduler_cls",
    "async_scheduling",
    "logits_processors",
    "runner",
    "kv_transfer_config",
)
"""The user's arguments with which the engine is left as it is."""


def draft_args(config: EngineConfig, left_out: Collection[str]) -> dict[str, Any]:
    """Return the arguments of vLLM's engine with which it guesses. Empty: it doesn't.

    It doesn't on GPUs, where vLLM 0.32 has another runner, which takes no class of ours; nor if answers have to be the
    same bytes in whatever steps they are computed; nor if the model runs in other processes than the core; nor with
    adapters, for which vLLM asks for room in a step for all guesses of all rows.

    Args:
        config: how the engine is started.
        left_out: names of the patches of vLLM that are not applied.
    """
    if config.gpus or config.reproducible or config.parallel_size > 1 or {"drafts", "executor"} & {*left_out}:
        return {}
    if config.adapters or config.engine_args.get("enable_lora"):
        return {}
    if any(name in config.engine_args for name in _OTHERS):
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
