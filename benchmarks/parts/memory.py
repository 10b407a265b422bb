"""Measures whether memory grows with the table: ``python -m benchmarks.parts.memory``.

Jobs of two sizes run in processes of their own, from a Parquet file into a Parquet file. All of it is real, except that
nothing is given to vLLM: a row that is to be sent gets its answer, which repeats its last tokens, in the next turn of
the engine's loop. The reader, Daft, the tokenizer, the queue, the store and the writer do what they always do.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.parquet as pq
import typer

from benchmarks.suite.memory import high_water_mb

_CHUNK = 50_000
_ANSWER_TOKENS = 24


def main(
    rows: Annotated[list[int] | None, typer.Option(min=1, help="A size. May be repeated.")] = None,
    store: Annotated[bool, typer.Option(help="Keep the answers in a store too.")] = True,
    model: Annotated[str, typer.Option()] = "smollm2-135m",
) -> None:
    """Print the peak memory of each size, without the processes of vLLM, and what it is of the first's."""
    first = 0.0
    print("| rows | seconds | rows/s | peak memory of the process, MiB | of the first |\n|---|---|---|---|---|")
    for size in rows or [100_000, 1_000_000]:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            _write_table(folder / "in.parquet", size)
            started = time.monotonic()
            with (folder / "log").open("wb") as log:
                done = subprocess.run(_child(folder, model, store), stdout=subprocess.PIPE, stderr=log, check=False)
            if done.returncode:
                sys.exit(f"it ended with {done.returncode}: {(folder / 'log').read_text(encoding='utf-8')[-2000:]}")
            seconds, peak = time.monotonic() - started, float(done.stdout.split()[-1])
            _check(folder / "out.parquet", size)
            first = first or peak
            print(f"| {size} | {seconds:.0f} | {size / seconds:.0f} | {peak:.0f} | {peak / first:.2f} |", flush=True)


def _child(folder: Path, model: str, store: bool) -> list[str]:
    code = f"from benchmarks.parts.memory import run; run({str(folder)!r}, {model!r}, {store!r})"
    return [sys.executable, "-c", f"if __name__ == '__main__':\n    {code}"]


def run(folder: str, model: str, store: bool) -> None:
    """Run the job in this process with the stub, and print the largest memory that the process has had, in MiB."""
    import daft

    from daft_vllm.engine.process.core import Core
    from daft_vllm.engine.requests.outcome import Outcome
    from daft_vllm.engine.scheduling.row import Row
    from daft_vllm.job import prompt_of, run_job
    from daft_vllm.udf.options import PromptOptions

    async def generate(self: Core, request_id: str, row: Row) -> Outcome:
        self.watch.last_step = time.monotonic()
        self.watch.running = self.max_num_seqs  # so nothing waits for a step of vLLM
        await asyncio.sleep(0)
        text = self.llm.renderer.get_tokenizer().decode(row.token_ids[-_ANSWER_TOKENS:])
        return Outcome(text, "stop", row.prompt_tokens, 0, _ANSWER_TOKENS)

    Core.generate = generate  # type: ignore[method-assign]
    place = Path(folder)
    options: dict[str, Any] = {"model": model, "gpus": 0, "max_tokens": _ANSWER_TOKENS, "apply_chat_template": False}
    options["engine_args"] = {"max_model_len": 512, "kv_cache_memory_bytes": 64 << 20}
    if store:
        options["store"] = str(place / "store")
    df = daft.read_parquet(str(place / "in.parquet"))
    run_job(df, prompt_of(df, "{question}").messages, str(place / "out.parquet"), options=PromptOptions.of(options))
    print(high_water_mb(os.getpid()), flush=True)


def _question(number: int) -> str:
    return f"Question {number}: what is known about places, people and the {number % 97} things of year {number}?"


def _write_table(path: Path, rows: int) -> None:
    with pq.ParquetWriter(path, pa.schema([("id", pa.int64()), ("question", pa.string())])) as writer:
        for start in range(0, rows, _CHUNK):
            numbers = range(start, min(start + _CHUNK, rows))
            writer.write_table(pa.table({"id": list(numbers), "question": [_question(i) for i in numbers]}))


def _answers(path: Path) -> Iterator[tuple[int, str]]:
    for batch in pq.ParquetFile(path).iter_batches(_CHUNK, columns=["id", "answer"]):
        yield from zip(batch["id"].to_pylist(), batch["answer"].to_pylist(), strict=True)


def _check(path: Path, rows: int) -> None:
    """Make sure that each id is there once, with its own answer."""
    seen = bytearray(rows)
    for number, answer in _answers(path):
        assert not seen[number], f"{number} is there twice"
        assert _question(number).endswith(answer or "?!"), f"{number} has the answer {answer!r}"
        seen[number] = 1
    assert all(seen), "an id is missing"


if __name__ == "__main__":
    typer.run(main)
