"""What a run did, beside what the card can do: its arithmetic, its memory's bandwidth, and the planned throughput."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.suite.records import Record
from daft_vllm.model_configs import ModelConfig
from daft_vllm.model_configs.cards import Card, cards
from daft_vllm.model_configs.memory import plan_memory, sequence_bytes
from daft_vllm.model_configs.throughput import estimate_throughput


@dataclass(frozen=True)
class Roof:
    """The figures of one run; None where something isn't known.

    Args:
        arm: the arm.
        workload: the workload.
        rows: rows of the run.
        computed: prompt tokens computed a second.
        output: output tokens a second.
        steps: steps of vLLM's scheduler a second.
        running: sequences in a step, on average.
        flops: share of the card's 16-bit rate: 2 operations for each weight and token. Attention is left out.
        bandwidth: share of the card's bandwidth: the weights once a step, and the cache of each output token's
            sequence. What prompts read is left out.
        estimated: rows a second by ``daft_vllm.model_configs.throughput``, with this run's tokens.
        measured: rows a second measured.
    """

    arm: str
    workload: str
    rows: int
    computed: float | None = None
    output: float | None = None
    steps: float | None = None
    running: float | None = None
    flops: float | None = None
    bandwidth: float | None = None
    estimated: float | None = None
    measured: float | None = None

    @property
    def of_estimate(self) -> float | None:
        """Rows a second measured, over those estimated."""
        return self.measured / self.estimated if self.measured and self.estimated else None


def roof_of(record: Record, setup: Mapping[str, Any], config: ModelConfig) -> Roof:
    """Return the figures of a run.

    Args:
        record: the run; it has seconds.
        setup: what the set-up found: ``device``, ``weights`` and ``engine_args``.
        config: the model's numbers.
    """
    seconds = record.seconds or 0.0
    card = cards().get(setup["device"]["card"])
    roof: dict[str, Any] = {
        "computed": _per(record.computed_tokens, seconds),
        "output": _per(record.output_tokens, seconds),
        "steps": _per(record.steps, seconds),
        "running": record.mean_running,
        "measured": record.rows_per_second,
    }
    if card is not None:
        roof |= _shares(record, seconds, setup, config, card)
    return Roof(record.arm, record.workload, record.rows, **roof)


def _shares(
    record: Record, seconds: float, setup: Mapping[str, Any], config: ModelConfig, card: Card
) -> dict[str, float | None]:
    args, weights = setup["engine_args"], int(setup["weights"])
    parameters = config.active_parameters or config.parameters
    found: dict[str, float | None] = {}
    if record.prompt_tokens is None or not record.output_tokens or not config.parameters:
        return found
    prompt, output = record.prompt_tokens / record.rows, record.output_tokens / record.rows
    if record.computed_tokens is not None and card.flops:
        found["flops"] = 2 * parameters * (record.computed_tokens + record.output_tokens) / seconds / card.flops
    if record.steps is not None and card.bandwidth:
        # A mixture of experts reads at most all of its weights in a step.
        mean = sequence_bytes(config.architecture, round(prompt + output / 2))
        found["bandwidth"] = (record.steps * weights + record.output_tokens * mean) / seconds / card.bandwidth
    if record.cached_tokens is None:
        return found
    estimate = estimate_throughput(
        config,
        plan_memory(config.architecture, weights, card, engine_args=args),
        args,
        prompt_tokens=round(prompt),
        output_tokens=max(1, round(output)),
        cached_tokens=round(record.cached_tokens / record.rows),
    )
    found["estimated"] = estimate.rows if estimate is not None else None
    return found


def _per(count: int | None, seconds: float) -> float | None:
    return count / seconds if count is not None and seconds else None
