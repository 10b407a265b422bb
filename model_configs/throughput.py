"""Estimates how fast a model is on a card, from what the card computes, reads and sends. Measures nothing here.

The numbers of ``Rates`` are fitted to one half of about 500 published measurements;
``python -m benchmarks.parts.throughput_logs`` shows how far the estimates are off on the other half.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from daft_vllm.model_configs.cards import GIB
from daft_vllm.model_configs.memory import (
    BYTES,
    MemoryPlan,
    block_tokens,
    cache_element_bytes,
    sequence_bytes,
    vllm_defaults,
)
from daft_vllm.model_configs.registry import ModelConfig
from daft_vllm.model_configs.steps import StepTime

OFF_BY = 1.8
"""Nine tenths of the published measurements of vLLM 0.9 and later that the rates weren't fitted to are within this
factor of the estimate."""
_CACHE_OFF_BY = GIB
"""By how much a plan's KV cache may be off. That matters where the weights fill nearly all of the memory."""
_GROWN = 0.7
"""How much of its answer a sequence has when the cache is full: they are of all ages, and older ones take more."""


@dataclass(frozen=True)
class Throughput:
    """What one engine does in a second.

    Args:
        rows: rows answered.
        low: rows answered, if the estimate is too high.
        high: rows answered, if the estimate is too low.
        prompt_tokens: prompt tokens, including cached ones.
        output_tokens: output tokens.
        sequences: sequences that run at once (not per second).
    """

    rows: float
    low: float
    high: float
    prompt_tokens: float
    output_tokens: float
    sequences: int

    def hours(self, rows: int) -> tuple[float, float]:
        """Return the fewest and the most hours that ``rows`` rows may take on one engine."""
        return rows / self.high / 3600, rows / self.low / 3600


def estimate_throughput(
    config: ModelConfig,
    plan: MemoryPlan,
    engine_args: Mapping[str, Any] | None = None,
    *,
    prompt_tokens: int,
    output_tokens: int,
    cached_tokens: int = 0,
) -> Throughput | None:
    """Return how fast rows of this shape go through one engine, while there are enough of them to fill it.

    None if a row doesn't fit into its memory, nothing is known of the card's speed, or the model computes in float32,
    for which there are no measurements. Images and sounds are left out.

    Args:
        config: the model's config.
        plan: how its memory is divided.
        engine_args: arguments of vLLM's engine. Those with an effect here: ``max_num_seqs``,
            ``max_num_batched_tokens``, ``kv_cache_dtype``, ``dtype``, ``quantization``.
        prompt_tokens: of a row.
        output_tokens: of a row, 1 at least.
        cached_tokens: tokens of the prompt that other rows share.
    """
    given = {name: value for name, value in (engine_args or {}).items() if value is not None}
    args = {**vllm_defaults(plan.card), **given}
    if BYTES.get(str(args.get("dtype", "auto")), 2.0) > 2 or not (plan.card.flops and plan.card.bandwidth):
        return None
    shape = Shape(prompt_tokens, output_tokens, cached_tokens)
    load = Load.of(config, plan, args, shape)
    if load is None:
        return None
    time = StepTime(config, plan, args)
    rows = load.rows_per_second(time)
    fewer, more = (load.with_cache(plan.cache + change) for change in (-_CACHE_OFF_BY, _CACHE_OFF_BY))
    return Throughput(
        rows=rows,
        low=fewer.rows_per_second(time) / OFF_BY,
        high=more.rows_per_second(time) * OFF_BY,
        prompt_tokens=rows * prompt_tokens,
        output_tokens=rows * output_tokens,
        sequences=max(1, int(load.sequences)),
    )


@dataclass(frozen=True)
class Shape:
    """The tokens of a row: of its prompt, of its answer, and those of its prompt that other rows share."""

    prompt: float
    output: float
    cached: float = 0


@dataclass(frozen=True)
class Load:
    """What an engine has in its steps, while there are enough rows.

    Args:
        shape: the rows.
        most: sequences that vLLM lets run at once.
        batched: tokens of a step.
        sequence: bytes that a running sequence has in the KV cache of each GPU.
        cache: bytes of that cache.
    """

    shape: Shape
    most: float
    batched: int
    sequence: int
    cache: float

    @classmethod
    def of(cls, config: ModelConfig, plan: MemoryPlan, args: Mapping[str, Any], shape: Shape) -> Load | None:
        """Return the load. None: the cache doesn't hold one row."""
        whole = _bytes(config, plan, args, shape.prompt + shape.output)
        if plan.cache < whole:
            return None
        held = _bytes(config, plan, args, shape.prompt + _GROWN * shape.output)
        return cls(shape, int(args["max_num_seqs"]), int(args["max_num_batched_tokens"]), max(1, held), plan.cache)

    def with_cache(self, cache: float) -> Load:
        """Return the same load with another KV cache, which holds one row in any case."""
        return replace(self, cache=max(cache, self.sequence))

    @property
    def sequences(self) -> float:
        """How many sequences run at once."""
        return max(1.0, min(self.most, self.cache / self.sequence))

    def step(self) -> tuple[float, float]:
        """Return how many sequences write a token in a step, and how many tokens of prompts it computes.

        For each row that ends another one begins, so in the mean a step computes as many prompts as it ends answers.
        If both together are more than a step's tokens, fewer sequences write.
        """
        new = (self.shape.prompt - self.shape.cached) / max(1.0, self.shape.output)
        writing = min(self.sequences, self.batched / (1 + new))
        return writing, writing * new

    def rows_per_second(self, time: StepTime) -> float:
        """Return the rows that are answered in a second."""
        writing, prompts = self.step()
        seconds = time.seconds(writing, prompts, self.shape.prompt, self.shape.output, self.shape.cached)
        return writing / (max(1.0, self.shape.output) * seconds)


def _bytes(config: ModelConfig, plan: MemoryPlan, args: Mapping[str, Any], tokens: float) -> int:
    """Return the bytes of a running sequence. Of a window, nothing but the window is kept once the prompt is read."""
    return sequence_bytes(
        config.architecture,
        int(tokens),
        tensor_parallel=plan.gpus,
        element_bytes=cache_element_bytes(args),
        block_size=block_tokens(
            config.architecture, tensor_parallel=plan.gpus, element_bytes=cache_element_bytes(args)
        ),
        batched_tokens=1,
    )
