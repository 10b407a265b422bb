"""The time of a step of a replica."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks.cluster.replica import EngineSize, Load
from benchmarks.cluster.traces import BLOCK
from daft_vllm.model_configs.cards import card_of
from daft_vllm.model_configs.memory import plan_memory, sequence_bytes, weights_of
from daft_vllm.model_configs.registry import config_of
from daft_vllm.model_configs.steps import StepTime

_PROMPT = 512
_STEP = 8192


@dataclass(frozen=True)
class StepSeconds:
    """The seconds of a step: a sum of four parts.

    Args:
        step: of each step.
        new: of each token of a prompt.
        decode: of each token of an answer.
        context: of each cached token that is read.
    """

    step: float
    new: float
    decode: float
    context: float

    def of(self, load: Load) -> float:
        """Return the seconds of a step."""
        return self.step + self.new * load.new + self.decode * load.decode + self.context * load.context


def engine_of(model: str, card: str, *, max_num_seqs: int, max_model_len: int) -> tuple[EngineSize, StepSeconds]:
    """Return the size of an engine and how long its steps take, by the estimates of ``daft_vllm.model_configs``.

    ``StepTime`` is made linear: a step without tokens, one with 8,192 tokens of prompts of 512, and steps of
    ``max_num_seqs`` sequences with a short and with a long context are exact. Others are up to 12% too long, those of
    64 sequences up to 7%: computing and reading overlap, and a sum doesn't know that.

    Raises:
        ValueError: the model or its weights are not known, or it doesn't fit the card.
    """
    config = config_of(model)
    if config is None:
        raise ValueError(f"nothing is known of {model!r}: see `daft-vllm models`")
    args: dict[str, Any] = {
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": _STEP,
        "max_model_len": max_model_len,
    }
    found = card_of(card)
    plan = plan_memory(config.architecture, weights_of(config, args), found, engine_args=args)
    if not plan.fits:
        raise ValueError(f"{model} does not fit {card}")
    time = StepTime(config, plan, args)
    step = time.seconds(0, 0, 1, 0)
    new = (time.seconds(0, _STEP, _PROMPT, 0) - step) / _STEP
    short, long = (time.seconds(max_num_seqs, 0, tokens, 0) for tokens in (_PROMPT, 4 * _PROMPT))
    context = (long - short) / (3 * _PROMPT * max_num_seqs)
    decode = (short - step) / max_num_seqs - context * _PROMPT
    block = sequence_bytes(config.architecture, BLOCK)
    return EngineSize(max_num_seqs, _STEP, int(plan.cache // block)), StepSeconds(step, new, decode, context)
