"""Chooses how many sequences and tokens a step has, for a model on a card.

vLLM's own defaults depend on the card alone: 256 sequences and 8,192 tokens on most of them, 1,024 and 16,384 where
there are 70 GiB. A small model on an A100 has room for more sequences, and a step with more of them takes hardly
longer. Where the weights leave little memory, fewer sequences and tokens leave more of it to the KV cache. Both are
weighed by the estimate of ``throughput``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from daft_vllm.model_configs.cards import Card
from daft_vllm.model_configs.memory import plan_memory, vllm_defaults, weights_of
from daft_vllm.model_configs.registry import ModelConfig
from daft_vllm.model_configs.throughput import estimate_throughput

SHAPES = ((512, 128), (2000, 16), (100, 300))
"""Prompt and output tokens of the rows that it is weighed for: an answer of a paragraph, a label, a longer text."""
_SEQUENCES = (64, 128, 256, 512, 1024)
_TOKENS = 8192
"""Tokens of a step that are tried besides the default. More than the default made an A100 slower (vllm-project/vllm,
pull request 17885)."""
_WORTH = 1.04
"""A choice is left to vLLM unless the rows are faster by this factor, in the mean over the shapes."""


def batching_settings(
    config: ModelConfig, card: Card, gpus: float, engine_args: Mapping[str, Any]
) -> tuple[dict[str, int], str]:
    """Return the arguments of vLLM's engine that differ from its defaults, by name, and the reason.

    Nothing, where the defaults are as good, or nothing is known of the card's speed.

    Args:
        config: the model's config.
        card: the card.
        gpus: GPUs of the engine; a share of one, such as 0.5.
        engine_args: arguments that are chosen already. They are kept.
    """
    if engine_args.get("enable_chunked_prefill") is False:  # a step then has to take the longest prompt whole
        return {}, ""
    engine_args = {name: value for name, value in engine_args.items() if value is not None}
    defaults = vllm_defaults(card)
    before = _rate(config, card, gpus, {**defaults, **engine_args})
    best, rate = dict(defaults), before
    for sequences in _SEQUENCES:
        for tokens in sorted({_TOKENS, defaults["max_num_batched_tokens"]}):
            chosen = {"max_num_seqs": sequences, "max_num_batched_tokens": tokens}
            args = {**chosen, **engine_args}
            if args["max_num_seqs"] > args["max_num_batched_tokens"]:  # vLLM refuses that
                continue
            new = _rate(config, card, gpus, args)
            if new > rate * 1.005:  # of equal ones, the first: it takes less memory
                best, rate = chosen, new
    changed = {name: value for name, value in best.items() if name not in engine_args and value != defaults[name]}
    if not changed or rate < _WORTH * max(before, 1e-9):
        return {}, ""
    if not before:
        return changed, "with vLLM's default a row of 2,000 tokens doesn't fit into the memory"
    return changed, f"by estimate {rate / before:.2f} times the rows of vLLM's default on this card"


def _rate(config: ModelConfig, card: Card, gpus: float, args: Mapping[str, Any]) -> float:
    """Return the geometric mean of the rows per second over the shapes that fit. 0: none fits."""
    plan = plan_memory(config.architecture, weights_of(config, args), card, gpus=gpus, engine_args=args)
    rates = []
    context = int(args.get("max_model_len") or -1)
    for prompt, output in SHAPES:
        if context < 1 or prompt + output <= context:
            found = estimate_throughput(config, plan, args, prompt_tokens=prompt, output_tokens=output)
            if found is None:
                return 0.0
            rates.append(math.log(found.rows))
    return math.exp(sum(rates) / len(rates)) if rates else 0.0
