"""Measures how many rows a second one process can feed to its engines: ``python -m benchmarks.parts.front_end``.

The engines' cores are stubs that take no time (``stub_core.py``); all else is real, from Daft's table to the column of
answers. Each measurement runs in a process of its own, on one CPU core.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from typing import Annotated, Any

import typer

SHARED, OWN = 512, 64
SEQUENCES = 256


def main(
    engines: Annotated[str, typer.Option(help="How many engines, separated by commas.")] = "1,8,64",
    tokens: Annotated[str, typer.Option(help="Tokens of each answer, separated by commas.")] = "1,16,64",
    rows: Annotated[int, typer.Option(min=1)] = 10_000,
    rows_per_prefix: Annotated[int, typer.Option(min=1)] = 250,
    whole: Annotated[bool, typer.Option(help="Cores send whole answers, as daft-vllm lets them.")] = True,
    model: Annotated[str, typer.Option()] = "smollm2-135m",
) -> None:
    """Print rows a second, and the CPU time of the process for each row, by number of engines and tokens."""
    print(f"{rows} rows of {SHARED} + {OWN} tokens, of which {rows_per_prefix} share the first {SHARED}\n")
    print("| engines | tokens of an answer | rows/s | CPU time a row, µs |\n|--:|--:|--:|--:|")
    for count in map(int, engines.split(",")):
        for answer in map(int, tokens.split(",")):
            arguments = repr((count, answer, rows, rows_per_prefix, whole, model))
            code = f"from benchmarks.parts.front_end import run\nif __name__ == '__main__':\n    run(*{arguments})"
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(f"it ended with {done.returncode}: {done.stderr[-2000:]}")
            seconds, used = map(float, done.stdout.splitlines()[-1].split())
            print(f"| {count} | {answer} | {rows / seconds:.0f} | {1e6 * used / rows:.0f} |", flush=True)


def run(engines: int, tokens: int, rows: int, rows_per_prefix: int, whole: bool, model: str) -> None:
    """Answer a table in this process, and print the seconds that it took, and those of CPU time."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    import daft
    from daft import col

    from benchmarks.parts.stub_core import stub_cores
    from benchmarks.suite.vocabulary import Vocabulary
    from daft_vllm import prompt
    from daft_vllm.engine import EngineConfig, OfflineEngine
    from daft_vllm.model_configs import resolve_model
    from daft_vllm.udf.worker import opening

    folder = resolve_model(model)
    vocabulary, rng = Vocabulary.of_model(folder), random.Random(1)
    shared = [vocabulary.text(SHARED, rng) for _ in range(-(-rows // rows_per_prefix))]
    own = [vocabulary.text(OWN, rng) for _ in range(rows)]
    numbers = list(range(rows))
    rng.shuffle(numbers)
    engine_args: dict[str, Any] = {"max_model_len": 1024, "kv_cache_memory_bytes": 64 << 20, "max_num_seqs": SEQUENCES}
    with stub_cores(whole=whole):
        engine = OfflineEngine(
            EngineConfig(model=folder, gpus=0, engine_args=engine_args), variables=[{} for _ in range(engines)]
        )
        while not all(thread.lane.is_open for thread in engine._state._threads):
            time.sleep(0.1)
    opening.shared_engine = lambda *_, **__: engine  # type: ignore[assignment]
    options: dict[str, Any] = {"model": folder, "gpus": 0, "max_tokens": tokens, "ignore_eos": True}

    def answered(first: int, last: int) -> tuple[float, float]:
        some = numbers[first:last]
        df = daft.from_pydict({"id": some, "q": [shared[i // rows_per_prefix] + own[i] for i in some]})
        answer = prompt(col("q"), apply_chat_template=False, engine_args=engine_args, **options)
        df = df.select("id", answer.alias("a"))
        began, used = time.monotonic(), time.process_time()
        found = df.to_pydict()
        seconds, used = time.monotonic() - began, time.process_time() - used
        assert sorted(found["id"]) == sorted(some), "an id is missing, or there twice"
        assert all(found["a"]), "a row has no answer"
        return seconds, used

    answered(0, rows // 10)
    print(*answered(0, rows))
    engine.close()


if __name__ == "__main__":
    typer.run(main)
