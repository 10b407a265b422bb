"""The part of the conformance run in which a model writes: several answers for every schema, all in one engine."""

from __future__ import annotations

import json

import typer

from benchmarks.guided.cases import Case, return_format_of
from daft_vllm import EngineConfig, OfflineEngine, Request, SamplingOptions
from daft_vllm.engine import Constraint
from daft_vllm.engine.constraints.limits.validator import validator_of
from daft_vllm.model_configs import resolve_model
from daft_vllm.udf.answers.describe import describe
from daft_vllm.udf.answers.return_format import ReturnFormat

CHUNK = 256
"""Rows of one call. They mix schemas of all kinds, so that a constraint that leaks into another row is noticed."""


def let_model_answer(
    cases: list[Case], model: str, engine_args: dict[str, object], answers: int, max_tokens: int
) -> None:
    """Add to each enforced case what ``model`` wrote: values, cut-off answers, and violations of the schema.

    Args:
        cases: the cases, with their backends filled in.
        model: folder or name.
        engine_args: arguments of vLLM's engine.
        answers: answers per schema, sampled at temperature 1, each with another seed.
        max_tokens: longest answer.
    """
    enforced = [case for case in cases if case.backend is not None]
    forms = [return_format_of(case) for case in enforced]
    rows = []
    for number in range(answers):
        for case, form in zip(enforced, forms, strict=True):
            constraint = Constraint(json_schema=json.dumps(case.schema))
            request = Request(
                f"Invent an example, number {number}.",
                preamble=describe(constraint) if form is not None else None,
                constraint=constraint,
                sampling=SamplingOptions(temperature=1.0, seed=number, max_tokens=max_tokens),
                thinking=False,
            )
            rows.append((case, form, request))
    with OfflineEngine(EngineConfig(resolve_model(model), engine_args)) as engine:
        for start in range(0, len(rows), CHUNK):
            chunk = rows[start : start + CHUNK]
            outcomes = engine.run([request for _, _, request in chunk])
            for (case, form, _), outcome in zip(chunk, outcomes, strict=True):
                _count(case, form, outcome.text, None if outcome.error is None else str(outcome.error))
            typer.echo(f"{min(start + CHUNK, len(rows))} of {len(rows)} answers", err=True)


def _count(case: Case, form: ReturnFormat | None, text: str | None, error: str | None) -> None:
    if error is not None:
        if error.startswith("truncated"):
            case.cut_off += 1
        else:
            case.unanswered += 1
        return
    value = json.loads(text or "")
    wrong = [problem.message for problem in validator_of(case.schema).iter_errors(value)]
    if wrong:
        case.violations.append(f"{wrong[0]}: {text}"[:300])
    elif form is not None and form.parse(text or "").error is not None:
        case.unanswered += 1  # valid, but null in its column: a number out of the range of a double
    else:
        case.values += 1
