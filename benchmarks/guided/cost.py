"""Measures what constrained answers cost: ``python -m benchmarks.guided.cost``.

One engine, the same prompts and the same number of output tokens with and without a constraint; rounds are interleaved.
The constrained answers are lists that can't be complete before the limit, so every row writes ``tokens`` tokens.
"""

from __future__ import annotations

import json
import time
from statistics import median
from typing import Annotated

import typer

from benchmarks.suite.suites import suite as suite_of
from benchmarks.suite.suites import suite_names
from daft_vllm import Constraint, EngineConfig, OfflineEngine, Request, SamplingOptions
from daft_vllm.engine.constraints.enforcement import enforcement_of

ENTRY = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]{3,12}$"},
        "kind": {"enum": ["plant", "animal", "mineral", "tool", "place"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 999},
        "fresh": {"type": "boolean"},
    },
    "required": ["name", "kind", "count", "fresh"],
    "additionalProperties": False,
}
BOUNDED = {**ENTRY, "properties": {**ENTRY["properties"], "name": {"type": "string", "minLength": 3, "maxLength": 40}}}


def constraints() -> dict[str, Constraint | None]:
    """Return the constraint of the answers, by the name of the arm."""

    def of(entry: object, **options: object) -> Constraint:
        schema = {"type": "array", "items": entry, "minItems": 1000}
        return Constraint(json_schema=json.dumps(schema), **options)  # type: ignore[arg-type]

    arms: dict[str, Constraint | None] = {"unguided": None}
    for name, constraint in {
        "schema": of(ENTRY),
        "schema, llguidance": of(ENTRY, backend="guidance"),
        "strings of 3 to 40 characters": of(BOUNDED),
        "strings of 3 to 40 characters, xgrammar": of(BOUNDED, backend="xgrammar"),
    }.items():
        arms[f"{name} ({enforcement_of(constraint).backend})"] = constraint
    return arms


def main(
    suite: Annotated[str, typer.Option(help=f"Device: {', '.join(suite_names())}.")] = "cpu",
    rows: Annotated[int, typer.Option(min=1, help="Rows of each run.")] = 128,
    tokens: Annotated[int, typer.Option(min=1, help="Output tokens of each row.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="Repetitions.")] = 3,
) -> None:
    """Print the rate with each constraint, over the rate without one in the same round."""
    chosen = suite_of(suite)
    limit = SamplingOptions(max_tokens=tokens, ignore_eos=True)
    arms = constraints()
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    first: dict[str, float] = {}
    with OfflineEngine(EngineConfig(chosen.model, dict(chosen.engine_args), gpus=chosen.gpus)) as engine:

        def measure(name: str, count: int, label: str) -> float:
            requests = [
                Request(f"List things of sort {label}-{i}.", sampling=limit, constraint=arms[name])
                for i in range(count)
            ]
            started = time.monotonic()
            outcomes = engine.run(requests)
            taken = time.monotonic() - started
            assert all(outcome.completion_tokens == tokens for outcome in outcomes), "a row ended early"
            return taken

        measure("unguided", rows, "warm-up")
        for name in arms:
            first[name] = measure(name, 1, "first") - measure(name, 1, "second")
        for number in range(rounds):
            for name in list(arms)[number % len(arms) :] + list(arms)[: number % len(arms)]:
                seconds[name].append(measure(name, rows, str(number)))
    typer.echo(f"{rows} rows of {tokens} output tokens, {rounds} rounds\n")
    typer.echo(
        "| answers | tokens/s | over unguided, by round | first request, more than the second, s |\n|---|---|---|---|"
    )
    for name, taken in seconds.items():
        ratios = [free / one for free, one in zip(seconds["unguided"], taken, strict=True)]
        spread = f"{median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})"
        typer.echo(f"| {name} | {rows * tokens / median(taken):.0f} | {spread} | {max(0.0, first[name]):.2f} |")


if __name__ == "__main__":
    typer.run(main)
