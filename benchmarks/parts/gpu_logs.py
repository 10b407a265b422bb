"""Compares the memory plan with published logs of vLLM on GPUs: ``python -m benchmarks.parts.gpu_logs``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from daft_vllm.model_configs import known_models
from daft_vllm.model_configs.cards import GIB, Card
from daft_vllm.model_configs.memory import MemoryPlan, plan_memory, weights_of

_GRAPHS_COUNT_SINCE = (0, 21)
"""The first version of vLLM that subtracts its estimate of CUDA graphs from the KV cache."""


@dataclass(frozen=True)
class Log:
    """What vLLM logged at one start.

    Args:
        model: its short name here.
        card: the GPU's name.
        memory_gib: its memory.
        gpus: how many the model was split over.
        vllm: vLLM's version.
        engine_args: arguments that it was started with, including the defaults of that version and card.
        weights_gib: "Model loading took".
        activations_gib: "peak activation". None: not logged.
        cache_gib: "Available KV cache memory".
        concurrency: "Maximum concurrency for max_model_len tokens per request".
        source: where the log comes from.
    """

    model: str
    card: str
    memory_gib: float
    gpus: int
    vllm: str
    engine_args: dict[str, Any]
    weights_gib: float
    activations_gib: float | None
    cache_gib: float
    concurrency: float
    source: str

    def plan(self) -> tuple[MemoryPlan, float, float]:
        """Return the plan, its KV cache as that version of vLLM counts it, in GiB, and the sequences that it holds."""
        config = known_models()[self.model]
        card = Card(self.card, self.card, int(self.memory_gib * GIB), 1e12, 1e15, "9.0", source=self.source)
        weights = weights_of(config, self.engine_args)
        plan = plan_memory(config.architecture, weights, card, gpus=self.gpus, engine_args=self.engine_args)
        version = tuple(map(int, self.vllm.split(".")[:2]))
        cache = plan.cache + (plan.graphs if version < _GRAPHS_COUNT_SINCE else 0)
        return plan, cache / GIB, plan.concurrency * cache / plan.cache


def read_logs() -> list[Log]:
    """Return the logs."""
    text = Path(__file__).with_name("gpu_logs.json").read_text(encoding="utf-8")
    return [Log(**entry) for entry in json.loads(text)]


def main() -> None:
    """Print a table, and the errors of the plans."""
    print("| model | GPUs | vLLM | weights, GiB | planned | KV cache, GiB | planned | sequences at once | planned |")
    print("|---|---|---|---|---|---|---|---|---|")
    errors = []
    for log in read_logs():
        plan, cache, sequences = log.plan()
        errors.append(abs(cache / log.cache_gib - 1))
        print(
            f"| {log.model} | {log.gpus} x {log.card.removeprefix('NVIDIA ')} | {log.vllm} | {log.weights_gib:.2f} | "
            f"{plan.weights / GIB:.2f} | {log.cache_gib:.2f} | {cache:.2f} | {log.concurrency:.1f} | {sequences:.1f} |"
        )
    print(f"\n{len(errors)} logs; the KV cache is off by {median(errors):.1%} (median), {max(errors):.1%} at most.")


if __name__ == "__main__":
    main()
