"""Measures what it costs when an engine runs empty between two batches: ``python -m benchmarks.parts.draining``.

One engine answers the same number of rows as one batch and as several. Each batch starts when the one before is
answered, as Daft gives batches to an actor in a process. Rounds are interleaved, and every run has its own texts.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Annotated

import typer

from benchmarks.suite.job import Job
from benchmarks.suite.suites import suite as suite_of
from benchmarks.suite.suites import suite_names
from benchmarks.suite.vocabulary import Vocabulary
from benchmarks.suite.workloads import make_job
from daft_vllm import EngineConfig, OfflineEngine, Request, SamplingOptions


def requests_of(job: Job) -> list[Request]:
    """Return the rows of a job without a schema, as ``OfflineEngine`` takes them."""
    options = {limit: SamplingOptions(max_tokens=limit, ignore_eos=job.ignore_eos) for limit in set(job.limits())}
    return [
        Request(prompt, sampling=options[limit], apply_chat_template=False)
        for prompt, limit in zip(job.prompts, job.limits(), strict=True)
    ]


def measure(engine: OfflineEngine, workload: str, rows: int, batch_size: int, seed: str, words: Vocabulary) -> float:
    """Return the seconds that ``rows`` rows take in batches of ``batch_size``."""
    requests = requests_of(make_job(workload, rows, seed, words))
    started = time.monotonic()
    for start in range(0, rows, batch_size):
        engine.run(requests[start : start + batch_size])
    return time.monotonic() - started


def main(
    suite: Annotated[str, typer.Option(help=f"Device: {', '.join(suite_names())}.")] = "cpu",
    workload: Annotated[str, typer.Option(help="Workload without a schema.")] = "instructions",
    rows: Annotated[int, typer.Option(help="Rows of each run.")] = 512,
    batch_sizes: Annotated[str, typer.Option(help="Batch sizes, separated by commas.")] = "64,128,256",
    rounds: Annotated[int, typer.Option(min=1, help="Repetitions.")] = 3,
) -> None:
    """Print what several batches cost, compared with one batch of all rows."""
    chosen = suite_of(suite)
    words = Vocabulary.of_model(chosen.model)
    sizes = [*(size for size in map(int, batch_sizes.split(",")) if size < rows), rows]
    seconds: dict[int, list[float]] = {size: [] for size in sizes}
    with OfflineEngine(EngineConfig(chosen.model, dict(chosen.engine_args), gpus=chosen.gpus)) as engine:
        measure(engine, workload, sizes[0], sizes[0], "warm-up", words)
        for number in range(rounds):
            for size in sizes:
                seconds[size].append(measure(engine, workload, rows, size, f"{number}/{size}", words))
    whole = median(seconds[rows])
    print(f"{workload}, {rows} rows, {rounds} rounds\n\n| batch size | seconds | over one batch | a drain, seconds |")
    print("|---|---|---|---|")
    for size in sizes:
        each = seconds[size]
        drains = -(-rows // size) - 1
        spread = f"{median(each):.2f} ({min(each):.2f}..{max(each):.2f})"
        cost = f"{(median(each) - whole) / drains:.2f}" if drains else ""
        print(f"| {size} | {spread} | {median(each) / whole:.3f} | {cost} |")


if __name__ == "__main__":
    typer.run(main)
