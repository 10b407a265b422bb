"""Measures what it costs when vLLM dies in the middle of a job: ``python -m benchmarks.parts.restart``.

The same number of rows runs undisturbed, and with vLLM's processes killed when a third of the rows is answered. Rounds
are interleaved, every run has its own texts, and every row has to be answered.
"""

from __future__ import annotations

import os
import signal
import time
from statistics import median
from typing import Annotated

import typer

from benchmarks.parts.draining import requests_of
from benchmarks.suite.suites import suite as suite_of
from benchmarks.suite.suites import suite_names
from benchmarks.suite.vocabulary import Vocabulary
from benchmarks.suite.workloads import make_job
from daft_vllm import EngineConfig, OfflineEngine, Request


def measure(engine: OfflineEngine, requests: list[Request], *, kill: bool) -> float:
    """Return the seconds that ``requests`` take. Every one has to be answered."""
    before = engine.stats()
    started = time.monotonic()
    future = engine.submit(requests)
    if kill:
        while engine.stats().since(before).done < len(requests) // 3:
            time.sleep(0.05)
        for process_id in engine.process_ids:
            os.kill(process_id, signal.SIGKILL)
    outcomes = future.result()
    seconds = time.monotonic() - started
    failed = [outcome.error for outcome in outcomes if outcome.error is not None]
    if failed or engine.stats().since(before).restarts != kill:
        raise RuntimeError(f"{len(failed)} rows failed, {engine.stats()}: {failed[:1]}")
    return seconds


def main(
    suite: Annotated[str, typer.Option(help=f"Device: {', '.join(suite_names())}.")] = "cpu",
    workload: Annotated[str, typer.Option(help="Workload without a schema.")] = "instructions",
    rows: Annotated[int, typer.Option(min=3, help="Rows of each run.")] = 256,
    rounds: Annotated[int, typer.Option(min=1, help="Repetitions.")] = 3,
) -> None:
    """Print the seconds of both kinds of runs."""
    chosen = suite_of(suite)
    words = Vocabulary.of_model(chosen.model)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    config = EngineConfig(chosen.model, dict(chosen.engine_args), gpus=chosen.gpus, max_restarts=rounds)
    with OfflineEngine(config) as engine:
        measure(engine, requests_of(make_job(workload, 3, "warm-up", words)), kill=False)
        for number in range(rounds):
            for kill, each in seconds.items():
                job = make_job(workload, rows, f"{number}/{kill}", words)
                each.append(measure(engine, requests_of(job), kill=kill))
    print(f"{workload}, {rows} rows, {rounds} rounds\n\n| vLLM | seconds |\n|---|---|")
    for kill, each in seconds.items():
        print(f"| {'killed once' if kill else 'undisturbed'} | {median(each):.1f} ({min(each):.1f}..{max(each):.1f}) |")


if __name__ == "__main__":
    typer.run(main)
