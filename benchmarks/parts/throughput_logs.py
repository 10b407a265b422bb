"""Compares the estimates of rows per second with published measurements of vLLM on GPUs.

``python -m benchmarks.parts.throughput_logs`` prints how far they are off; ``--fit`` fits ``Rates`` anew first. The
measurements are in ``throughput_logs.json``. Rates are fitted to one half of the pairs of model and card, and judged by
the other half. Left out are runs with answers of a few tokens, which the HTTP server slows down, and with pipelines.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median, quantiles
from typing import Annotated, Any

import typer

from daft_vllm.model_configs import ModelConfig, known_models
from daft_vllm.model_configs.cards import Card, card_of, cards
from daft_vllm.model_configs.memory import MemoryPlan, plan_memory, vllm_defaults, weights_of
from daft_vllm.model_configs.siblings import as_quantized
from daft_vllm.model_configs.steps import RATES, Rates, StepTime
from daft_vllm.model_configs.throughput import OFF_BY, Load, Shape

_GRAPHS_COUNT_SINCE = (0, 21)
"""The first version of vLLM that subtracts its estimate of CUDA graphs from the KV cache."""
_NEW_ENGINE = (0, 9)
"""Versions before it mostly ran vLLM's former engine (V0)."""
_OLD_WEIGHT = 0.15
"""How much a measurement of the former engine counts in a fit, beside 1 for one of today's."""
_LAST_ANSWERS = 4.0
"""How many times the mean the longest answers of a ShareGPT run are. They still run, nearly alone, after the others."""


@dataclass(frozen=True)
class Measurement:
    """One published run.

    Args:
        model: its short name here, or that of one with the same architecture.
        weights: how they are quantized, as ``siblings.as_quantized`` takes it. None: as the model's config says.
        card: the GPU's short name.
        gpus: how many the model was split over.
        vllm: vLLM's version. Empty: not stated.
        engine_args: arguments that it was started with.
        requests: of the whole run. None: unknown, but many.
        concurrency: the most requests at once. None: all.
        prompt_tokens: mean of a request.
        output_tokens: mean of a request.
        even: whether all answers are equally long.
        server: whether it was vLLM's HTTP server, which has other defaults.
        rows_per_second: requests that were answered in a second, for one engine.
        source: where it is published.
    """

    model: str
    weights: str | None
    card: str
    gpus: int
    vllm: str
    engine_args: dict[str, Any]
    requests: int | None
    concurrency: int | None
    prompt_tokens: float
    output_tokens: float
    even: bool
    server: bool
    rows_per_second: float
    source: str

    @property
    def group(self) -> str:
        """What is kept together when the measurements are divided: a model on a number of cards."""
        return f"{self.model}|{self.card}|{self.gpus}"

    @property
    def is_held(self) -> bool:
        """Whether it is in the half that nothing is fitted to."""
        return int(hashlib.sha256(self.group.encode()).hexdigest(), 16) % 2 == 1

    @property
    def version(self) -> tuple[int, ...]:
        """The version of vLLM; (0, 9) if it isn't stated."""
        return tuple(map(int, self.vllm.split(".")[:2])) if self.vllm else (0, 9)


class Prepared:
    """A measurement with its plan, to be estimated again and again.

    Args:
        measured: the measurement.
    """

    def __init__(self, measured: Measurement) -> None:
        self.measured = measured
        config = known_models()[measured.model]
        if measured.weights is not None:
            config = as_quantized(config, measured.weights)
        card = card_of(measured.card)
        self._args = {**_defaults(measured, card), **measured.engine_args}
        self._plan = plan_memory(
            config.architecture, weights_of(config, self._args), card, gpus=measured.gpus, engine_args=self._args
        )
        self._config: ModelConfig = config
        self._load = self._fitting_load()

    def _fitting_load(self) -> Load:
        """Return the run's load: it did run, so its cache holds a row whatever the plan says."""
        measured = self.measured
        cache = self._plan.cache + (self._plan.graphs if measured.version < _GRAPHS_COUNT_SINCE else 0)
        shape = Shape(measured.prompt_tokens, measured.output_tokens)
        whole: MemoryPlan = replace(self._plan, available=self._plan.available + 10**13)
        load = Load.of(self._config, whole, self._args, shape)
        assert load is not None
        most = min(load.most, measured.concurrency or load.most, measured.requests or load.most)
        return replace(load, most=most).with_cache(cache)

    def rows_per_second(self, rates: Rates = RATES, last_answers: float = _LAST_ANSWERS) -> float:
        """Return the estimate for this run, with its end, in which fewer and fewer requests are left."""
        time = StepTime(self._config, self._plan, self._args, rates)
        shape, requests = self._load.shape, self.measured.requests
        steady = self._load.rows_per_second(time)
        if requests is None:
            return steady
        running = self._load.sequences
        if self.measured.even:
            left, answers = running / 2, 0.5 * (1 - min(1.0, running / requests))
        else:
            left, answers = max(1.0, running / 8), last_answers
        end = answers * shape.output * time.seconds(left, 0, shape.prompt, shape.output)
        return requests / (requests / steady + end)

    def error(self, rates: Rates = RATES, last_answers: float = _LAST_ANSWERS) -> float:
        """Return by which factor the estimate is too high; below 1 if it is too low."""
        return self.rows_per_second(rates, last_answers) / self.measured.rows_per_second


def _defaults(measured: Measurement, card: Card) -> dict[str, Any]:
    """Return vLLM's defaults at that time."""
    args: dict[str, Any] = {**vllm_defaults(card), "gpu_memory_utilization": 0.9}
    if measured.server:
        args["max_num_batched_tokens"] //= 2 if args["max_num_seqs"] > 256 else 4
    if measured.version < _NEW_ENGINE:
        args["max_num_seqs"] = 256
    return args


def read_measurements() -> list[Measurement]:
    """Return the measurements."""
    text = Path(__file__).with_suffix(".json").read_text(encoding="utf-8")
    return [Measurement(**entry) for entry in json.loads(text)]


def fit(runs: Sequence[Prepared]) -> Rates:
    """Return the rates with which the estimates of these runs are best."""
    from scipy.optimize import minimize

    sizes = Counter(run.measured.group for run in runs)
    names = list(asdict(RATES))
    first = list(asdict(RATES).values())

    def cost(logs: Sequence[float]) -> float:
        rates = Rates(*(value * math.exp(log) for value, log in zip(first, logs, strict=True)))
        total = weights = 0.0
        for run in runs:
            old = run.measured.version < _NEW_ENGINE
            weight = (_OLD_WEIGHT if old else 1.0) / math.sqrt(sizes[run.measured.group])
            total += weight * min(abs(math.log(run.error(rates))), 1.0) ** 1.3
            weights += weight
        # Where the measurements say nothing about a rate it stays where it is.
        return total / weights + 0.01 * sum(log * log for log in logs)

    found = minimize(cost, [0.0] * len(names), method="Powell", options={"maxiter": 5, "ftol": 1e-4})
    return Rates(*(float(f"{value * math.exp(log):.3g}") for value, log in zip(first, found.x, strict=True)))


def summary(runs: Sequence[Prepared], rates: Rates = RATES) -> str:
    """Return how far the estimates are off, in words."""
    errors = sorted(math.exp(abs(math.log(run.error(rates)))) for run in runs)
    within = sum(error <= OFF_BY for error in errors) / len(errors)
    return (
        f"{len(runs)} runs: off by a factor of {median(errors):.2f} (median), {quantiles(errors, n=10)[-1]:.2f} (nine "
        f"tenths), {errors[-1]:.2f} (the worst); {within:.0%} within {OFF_BY}"
    )


def _row(runs: Sequence[Prepared], rates: Rates) -> str:
    ratios = [run.error(rates) for run in runs]
    measured = runs[0].measured
    return (
        f"| {measured.model} | {measured.gpus} x {measured.card} | {'held' if measured.is_held else 'fitted'} | "
        f"{len(runs)} | {min(ratios):.2f} | {median(ratios):.2f} | {max(ratios):.2f} |"
    )


def main(
    fit_anew: Annotated[bool, typer.Option("--fit", help="Fit the rates first: a minute.")] = False,
) -> None:
    """Print the estimates over the measured rows/s, for each model on each card, and how far they are off."""
    runs = [Prepared(measured) for measured in read_measurements()]
    rates = fit([run for run in runs if not run.measured.is_held]) if fit_anew else RATES
    if fit_anew:
        print(rates)
    print("| model | GPUs | half | runs | estimate / measured, least | median | most |\n|---|---|---|---|---|---|---|")
    groups: dict[str, list[Prepared]] = {}
    for run in runs:
        groups.setdefault(run.measured.group, []).append(run)
    for group in sorted(groups):
        print(_row(groups[group], rates))
    known = {run.measured.card for run in runs}
    print(f"\nCards without a measurement: {', '.join(card for card in cards() if card not in known)}.")
    chosen: dict[str, Callable[[Measurement], bool]] = {
        "fitted": lambda one: not one.is_held,
        "held": lambda one: one.is_held,
        "held, vLLM 0.9 and later": lambda one: one.is_held and one.version >= _NEW_ENGINE,
    }
    for name, wanted in chosen.items():
        print(f"{name}: {summary([run for run in runs if wanted(run.measured)], rates)}")


if __name__ == "__main__":
    typer.run(main)
