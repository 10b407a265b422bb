"""``python -m benchmarks --minutes``: what it checks, prints and runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import psutil

from benchmarks.card.plan import CARD_ARMS, CARD_WORKLOADS, LEAST_MINUTES, MOST_MINUTES, page_seconds
from benchmarks.card.run import CardRun
from benchmarks.card.stages.arms import first_rows
from benchmarks.suite.suites import Suite
from benchmarks.suite.workloads import workload_names
from daft_vllm.model_configs.cards import card_of
from daft_vllm.model_configs.memory import plan_memory


def card_workloads() -> list[str]:
    """Return the workloads that a run on a card takes: all that need no engine of their own."""
    return [name for name in workload_names() if name != "pressure"]


def card_run(
    suite: Suite,
    minutes: float,
    out: Path,
    *,
    model: str | None = None,
    arms: Sequence[str] = (),
    workloads: Sequence[str] = (),
    retry_failed: bool = False,
) -> CardRun:
    """Return a run that is checked, and has begun nothing.

    Args:
        suite: the device's suite.
        minutes: the whole time, the page included, from the start of this process.
        out: folder of the results.
        model: a folder, or a known model's name. None: the suite's choice.
        arms: the arms. Empty: those of the card's benchmark.
        workloads: the workloads. Empty: those of the card's benchmark.
        retry_failed: whether stages and tests that failed are run again.

    Raises:
        ValueError: the time is too short or too long, the model can't be used, or ``out`` is of another run.
    """
    if not LEAST_MINUTES <= minutes <= MOST_MINUTES:
        raise ValueError(f"--minutes is from {LEAST_MINUTES:g} to {MOST_MINUTES:g}, got {minutes:g}")
    return CardRun(
        suite,
        minutes,
        out,
        model=model,
        arms=arms or CARD_ARMS,
        workloads=workloads or CARD_WORKLOADS,
        retry_failed=retry_failed,
        say=lambda line: print(line, flush=True),
        started=psutil.Process().create_time(),
    )


def described(run: CardRun) -> str:
    """Return a run's plan as text. No device is touched."""
    suite, model, plan, total = run.suite, run.model, run.plan(), run.total
    args = {**suite.engine_args, **model.engine_args}
    lines = [
        f"suite {suite.name}, {total / 60:g} minutes",
        f"model: {model.name}, {model.config().parameters / 1e9:.2f} billion weights, "
        f"{model.weights() / 2**30:.2f} GiB; {model.why}",
        f"engine: {', '.join(f'{name}={value}' for name, value in args.items())}",
    ]
    if suite.gpus:
        card = card_of(suite.name)
        memory = plan_memory(model.config().architecture, model.weights(), card, engine_args=args)
        lines.append(
            f"memory, planned for {card.full_name}: {memory.weights / 2**30:.1f} GiB of weights and "
            f"{memory.cache / 2**30:.1f} GiB of cache, which is {memory.cache // max(1, memory.token):,} tokens"
        )
        if memory.cache <= memory.sequence:
            lines.append("it does not fit: take a smaller --model, qwen3-4b for example")
    firsts = ", ".join(f"{workload} {first_rows(suite, workload)}" for workload in run.workloads)
    lines += [f"rows of the first runs: {firsts}; those of the next ones follow from the time that these take", ""]
    begin = 0.0
    for stage in plan:
        if stage.seconds:
            lines.append(f"{begin:6.0f} s  {stage.seconds:5.0f} s  {stage.name}: {stage.what}")
            begin += stage.seconds
        elif not stage.round:
            lines.append(f"          left out  {stage.name}: {stage.why_not}")
    lines.append(f"{begin:6.0f} s  {page_seconds(total):5.0f} s  page")
    return "\n".join(lines)
