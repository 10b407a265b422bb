"""Measures tokenizing, with shared beginnings tokenized once and without: ``python -m benchmarks.parts.tokenizing``."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Annotated, Any

import typer

from benchmarks.suite.suites import suite
from benchmarks.suite.vocabulary import Vocabulary
from benchmarks.suite.workloads import make_job


def main(
    workloads: Annotated[str, typer.Option()] = "instructions,blog,nested,pressure,nosharing,tiny",
    rows: Annotated[int, typer.Option(min=2, help="Rows of a batch.")] = 384,
    rounds: Annotated[int, typer.Option(min=1)] = 5,
) -> None:
    """Print the CPU time of this process per row, median and range, by workload."""
    from transformers import AutoTokenizer

    from daft_vllm.engine.text.tokenize import Tokenizer

    model = suite("cpu").model
    theirs = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    ours = Tokenizer(theirs)
    print(f"| {rows} rows of | tokens a row | whole texts, µs a row | shared beginnings once, µs a row | times |")
    print("|---|---|---|---|---|")
    for workload in workloads.split(","):
        spent: tuple[list[float], list[float]] = [], []
        for round_number in range(rounds):
            texts = list(make_job(workload, rows, f"round-{round_number}", Vocabulary.of_model(model)).prompts)
            expected = _timed(spent[0], lambda texts=texts: theirs(texts)["input_ids"])
            if _timed(spent[1], lambda texts=texts: ours(texts, special_tokens=True)) != expected:
                raise SystemExit(f"other token ids on {workload}")
        per_row = [[1e6 * seconds / rows for seconds in one] for one in spent]
        cells = [f"{median(one):.0f} ({min(one):.0f}..{max(one):.0f})" for one in per_row]
        tokens = sum(map(len, expected)) / rows
        print(f"| {workload} | {tokens:.0f} | {cells[0]} | {cells[1]} | {median(spent[0]) / median(spent[1]):.1f} |")


def _timed(seconds: list[float], work: Callable[[], Any]) -> Any:
    started = time.process_time()
    result = work()
    seconds.append(time.process_time() - started)
    return result


if __name__ == "__main__":
    typer.run(main)
