"""Checks that schemas are enforced exactly: ``python -m benchmarks.guided.conformance [DIR ...]``.

Reads folders of JSON files, each ``{"schema": ..., "tests": [{"data": ..., "valid": ...}]}`` or a list of such objects
(the layout of the official JSON-Schema-Test-Suite). Without a model: does the grammar refuse each instance that the
schema refuses, and accept each that it accepts? Is every random text that the grammar allows valid? What is valid
decides ``jsonschema``, with formats checked. With ``--model``: is every value that a model writes valid?
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.guided.cases import Case, read_cases, return_format_of
from benchmarks.guided.grammars import KeyOrder, acceptor, texts_of, writer
from daft_vllm.engine import Constraint
from daft_vllm.engine.constraints.enforcement import enforcement_of
from daft_vllm.engine.constraints.limits.validator import validator_of
from daft_vllm.engine.setup.preflight import check_constraint
from daft_vllm.errors import SchemaError
from daft_vllm.model_configs import resolve_model

TEXTS = 40
TEXT_SECONDS = 2.0
"""Number of random texts of each schema, and how long all of them may take."""
OWN_SCHEMAS = Path(__file__).resolve().parent / "schemas"


def judge(case: Case, model: str | None = None, texts: int = TEXTS) -> None:
    """Fill in the case's results.

    If the schema is refused or can't be compiled for the model's tokenizer, the result is the reason. Otherwise: which
    instances its grammar accepts, and which random texts that the grammar allows are invalid.
    """
    constraint = Constraint(json_schema=json.dumps(case.schema))
    try:
        return_format_of(case)
        check_constraint(constraint, model)
        one = enforcement_of(constraint)
    except SchemaError as e:
        case.refused = str(e)
        return
    case.backend = one.backend
    accepts = acceptor(one)
    check = validator_of(case.schema)
    for instance in case.instances:
        try:
            is_valid = check.is_valid(instance)
        except Exception:  # jsonschema can't follow this schema either: it refers to another document, for example
            continue
        accepted = any(accepts(text) for text in texts_of(instance, one))
        if is_valid and accepted:
            case.valid_accepted += 1
        elif not is_valid and not accepted:
            case.invalid_refused += 1
        elif is_valid:
            key_order = KeyOrder(one)
            key_order.apply(instance)
            (case.unnamed_keys if key_order.has_unnamed_keys else case.valid_refused).append(json.dumps(instance)[:200])
        else:
            case.invalid_accepted.append(json.dumps(instance)[:200])
    if one.kind == "json":
        _judge_texts(case, writer(one, random.Random(case.name)), check, texts)


def _judge_texts(case: Case, write: Callable[[], str | None], check: Any, texts: int) -> None:
    until = time.monotonic() + TEXT_SECONDS
    for _ in range(texts):
        text = write() if time.monotonic() < until else None
        if text is None:
            continue
        case.texts += 1
        try:
            wrong = next((problem.message for problem in check.iter_errors(json.loads(text))), None)
        except json.JSONDecodeError as e:
            wrong = str(e)
        except Exception:  # as above
            continue
        if wrong is not None:
            case.wrong_texts.append(f"{wrong}: {text}"[:300])


def summary(folder: str, cases: list[Case]) -> str:
    """Return the Markdown table of one folder."""
    enforced = [case for case in cases if case.backend]
    narrow = [case for case in enforced if case.valid_refused]
    closed = [case for case in enforced if case.unnamed_keys]
    backends = Counter(case.backend for case in enforced)
    rows = [
        ("schemas", len(cases)),
        ("enforced", f"{len(enforced)} ({len(enforced) / len(cases):.1%})"),
        ("of them by", ", ".join(f"{name} {count}" for name, count in backends.most_common())),
        ("refused before the load", len(cases) - len(enforced)),
        ("invalid instances refused", sum(case.invalid_refused for case in enforced)),
        ("invalid instances accepted", sum(len(case.invalid_accepted) for case in enforced)),
        ("valid instances accepted", sum(case.valid_accepted for case in enforced)),
        ("schemas that refuse a valid instance", f"{len(narrow)} ({len(narrow) / len(cases):.1%})"),
        ("random texts that the grammars allow", sum(case.texts for case in enforced)),
        ("of them invalid", sum(len(case.wrong_texts) for case in enforced)),
        ("schemas that refuse keys that they don't name, on purpose", len(closed)),
    ]
    if any(case.values or case.cut_off for case in cases):
        rows += [
            ("values written by models", sum(case.values for case in cases)),
            ("answers cut off, null", sum(case.cut_off for case in cases)),
            ("rows without an answer, null", sum(case.unanswered for case in cases)),
            ("values that violate their schema", sum(len(case.violations) for case in cases)),
        ]
    return f"### {folder}\n\n| | |\n|---|---|\n" + "\n".join(f"| {name} | {value} |" for name, value in rows) + "\n"


def details(cases: list[Case]) -> str:
    """Return the refused schemas with the reasons, and what is accepted or refused contrary to its schema."""
    lines = []
    for case in cases:
        if case.refused:
            lines.append(f"- `{case.name}` refused: {case.keywords}: {case.reason[:300]}")
        for kind in ("invalid_accepted", "valid_refused", "wrong_texts", "violations"):
            found: list[str] = getattr(case, kind)
            if found:
                lines.append(f"- `{case.name}` {kind.replace('_', ' ')} {len(found)}: `{found[0][:160]}`")
    return "\n".join(lines)


def main(
    folders: Annotated[
        list[Path] | None, typer.Argument(help="Folders of schemas. Default: the project's own.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for conformance.json and details.md.")] = None,
    model: Annotated[str | None, typer.Option(help="Also let this model write answers.")] = None,
    engine_args: Annotated[str, typer.Option(help="vLLM's engine arguments as JSON.")] = "{}",
    answers: Annotated[int, typer.Option(min=1, help="Answers per schema.")] = 3,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 512,
) -> None:
    """Print a table per folder; exit with 1 if anything invalid is accepted or written."""
    everything: dict[str, list[Case]] = {}
    for folder in folders or [OWN_SCHEMAS]:
        if not folder.is_dir():
            typer.echo(f"{folder} is not there: skipped", err=True)
            continue
        cases = list(read_cases(folder))
        for case in cases:
            judge(case, None if model is None else resolve_model(model))
        if model is not None:
            from benchmarks.guided.conformance_answers import let_model_answer

            let_model_answer(cases, model, json.loads(engine_args), answers, max_tokens)
        everything[folder.name] = cases
        typer.echo(summary(folder.name, cases))
        if out is not None:
            _write(out, everything)
    wrong = [
        case
        for cases in everything.values()
        for case in cases
        if case.invalid_accepted or case.wrong_texts or case.violations
    ]
    if wrong:
        raise typer.Exit(1)


def _write(out: Path, everything: dict[str, list[Case]]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    listed = {name: [asdict(case) for case in cases] for name, cases in everything.items()}
    (out / "conformance.json").write_text(json.dumps(listed, indent=1), encoding="utf-8")
    text = "\n\n".join(f"{summary(name, cases)}\n{details(cases)}" for name, cases in everything.items())
    (out / "details.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
