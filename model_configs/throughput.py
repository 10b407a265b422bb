"""Estimates how fast a model is on a card, from what the card can compute and read. Measures nothing."""

from __future__ import annotations

from dataclasses import dataclass

from daft_vllm.model_configs.architecture import Architecture
from daft_vllm.model_configs.memory import MemoryPlan, sequence_bytes, vllm_defaults

COMPUTE_SHARE = 0.5
"""Share of the card's peak rate that large matrix products reach, with all else in the step included."""
BANDWIDTH_SHARE = 0.7
"""Share of the card's bandwidth that reading weights and caches reaches."""


@dataclass(frozen=True)
class Throughput:
    """What one engine does in a second.

    Args:
        rows: rows answered.
        prompt_tokens: prompt tokens, including cached ones.
        output_tokens: output tokens.
        sequences: sequences that run at once (not per second).
    """

    rows: float
    prompt_tokens: float
    output_tokens: float
    sequences: int

    def hours(self, rows: int, engines: int = 1) -> float:
        """Return the hours that ``rows`` rows take."""
        return rows / (self.rows * engines) / 3600


def estimate_throughput(
    architecture: Architecture,
    plan: MemoryPlan,
    *,
    active_parameters: int,
    prompt_tokens: int,
    output_tokens: int,
    cached_tokens: int = 0,
    max_num_seqs: int | None = None,
) -> Throughput | None:
    """Return how fast rows of this shape go through one engine.

    None if a row doesn't fit into its memory, or nothing is known of the card's speed.

    A prompt is computed at half of the card's peak rate. A step of generation either reads all weights and the caches
    of the sequences at 70% of the card's bandwidth, or computes at the rate of a prompt, whichever takes longer. The
    time between steps, and the front end, are left out.

    Args:
        architecture: the model's architecture.
        plan: how its memory is divided.
        active_parameters: weights that a token goes through.
        prompt_tokens: of a row.
        output_tokens: of a row, 1 at least.
        cached_tokens: tokens of the prompt that other rows share.
        max_num_seqs: vLLM's argument. None: its default on the card.
    """
    needed = sequence_bytes(architecture, prompt_tokens + output_tokens, tensor_parallel=plan.gpus)
    most = max_num_seqs or vllm_defaults(plan.card)["max_num_seqs"]
    sequences = min(most, plan.cache // max(1, needed))
    if sequences < 1 or not plan.card.flops or not plan.card.bandwidth:
        return None
    rate = plan.card.flops * plan.gpus * COMPUTE_SHARE
    bandwidth = plan.card.bandwidth * BANDWIDTH_SHARE
    prompt = 2 * active_parameters * (prompt_tokens - cached_tokens) / rate
    mean_cache = sequence_bytes(architecture, prompt_tokens + output_tokens // 2, tensor_parallel=plan.gpus)
    step = max((plan.weights + sequences * mean_cache) / bandwidth, 2 * active_parameters * sequences / rate)
    rows = 1 / (prompt + output_tokens * step / sequences)
    return Throughput(rows, rows * prompt_tokens, rows * output_tokens, int(sequences))
