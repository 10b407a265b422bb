"""Measures the time to the first answer: ``python -m benchmarks.parts.startup``.

Caches are cold and warm, the engine is compiled and not. For comparison: vLLM's own ``LLM`` with its core in a process
and the same engine arguments, not compiled. Each start is a new process. Cold: the cache folders of vLLM and torch are
empty. The model's files are in the page cache, because one start before the others reads them; it is not counted. The
rate after the first answer shows after how many rows a compiled engine is ahead, in spite of its later start.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

_OURS, _COMPILED, _VLLM = "not compiled", "compiled", "vLLM's LLM, not compiled"
_CACHES = ("VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


def main(
    model: Annotated[str, typer.Option(help="A short name, a folder, or a name on the hub.")] = "smollm2-135m",
    gpus: Annotated[float, typer.Option(help="GPUs of the engine.")] = 0,
    engine_args: Annotated[str, typer.Option(help="Further engine arguments as JSON.")] = '{"max_model_len": 2048}',
    rows: Annotated[int, typer.Option(help="Rows after the first answer, 64 tokens out of each.")] = 128,
    rounds: Annotated[int, typer.Option(help="Starts of each kind.")] = 3,
    out: Annotated[Path, typer.Option(help="File of JSON lines.")] = Path("out/startup.jsonl"),
) -> None:
    """Print the times of the starts."""
    out.parent.mkdir(parents=True, exist_ok=True)
    job = {"model": model, "gpus": gpus, "engine_args": json.loads(engine_args), "rows": rows}
    _start({**job, "rows": 1, "kind": _OURS}, None)
    found: dict[str, list[dict[str, float]]] = {}
    for number in range(rounds):
        for kind in (_OURS, _VLLM, _COMPILED):
            with tempfile.TemporaryDirectory() as caches:
                for state in ("cold", "warm"):
                    name = f"{kind}, {state}"
                    result = _start({**job, "kind": kind}, Path(caches))
                    found.setdefault(name, []).append(result)
                    with out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps({"start": name, "round": number, **job, **result}) + "\n")
    table = Table("start", "model ready, s", "first answer, s", "rows/s then", title=model)
    for name, results in found.items():
        cells = [median(result[key] for result in results) for key in ("ready", "first", "rate")]
        spread = [min(r["first"] for r in results), max(r["first"] for r in results)]
        table.add_row(name, f"{cells[0]:.1f}", f"{cells[1]:.1f} ({spread[0]:.1f}..{spread[1]:.1f})", f"{cells[2]:.2f}")
    Console(width=120).print(table)
    for state in ("cold", "warm"):
        eager, compiled = (found[f"{kind}, {state}"] for kind in (_OURS, _COMPILED))
        late = median(r["first"] for r in compiled) - median(r["first"] for r in eager)
        saved = 1 / median(r["rate"] for r in eager) - 1 / median(r["rate"] for r in compiled)
        ahead = f"ahead after {late / saved:.0f} rows" if saved > 0 else "never ahead"
        print(f"{state}: compiled is ready {late:.1f} s later, and {ahead}")


def _start(job: dict[str, Any], caches: Path | None) -> dict[str, float]:
    env = dict(os.environ)
    if caches is not None:
        env |= {name: str(caches / name.lower()) for name in _CACHES}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.parts.startup", "--worker"],
        input=json.dumps({**job, "began": time.time()}),
        capture_output=True,
        text=True,
        env=env,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    # vLLM's LLM may log to stdout as it ends.
    line = next(line for line in reversed(done.stdout.splitlines()) if line.startswith("{"))
    result: dict[str, float] = json.loads(line)
    return result


def _work() -> None:
    job = json.load(sys.stdin)
    prompts = [f"Row {i}: say something about the number {i * 7919}." for i in range(job["rows"])]
    with _answers(job) as answer:
        ready = time.time() - job["began"]
        answer(["Hello"], 1)
        first = time.time() - job["began"]
        answer(prompts, 64)
        rate = len(prompts) / (time.time() - job["began"] - first)
    print(json.dumps({"ready": ready, "first": first, "rate": rate}), flush=True)


@contextmanager
def _answers(job: dict[str, Any]) -> Iterator[Callable[[list[str], int], Any]]:
    """Open an engine, and yield a function that makes it answer prompts with a number of tokens each."""
    from daft_vllm.engine import EngineConfig, OfflineEngine, Request, SamplingOptions
    from daft_vllm.model_configs import resolve_model

    model = resolve_model(job["model"])
    args = {**job["engine_args"], "enforce_eager": job["kind"] != _COMPILED}
    if job["kind"] == _VLLM:
        from daft_vllm.engine.setup.environment import default_engine_args, prepare_environment

        cpu = job["gpus"] == 0
        prepare_environment(cpu=cpu)
        from vllm import LLM, SamplingParams

        llm = LLM(model=model, **{**default_engine_args(cpu=cpu), **args})
        yield lambda prompts, tokens: llm.generate(
            prompts, SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True), use_tqdm=False
        )
        return
    with OfflineEngine(EngineConfig(model, args, gpus=job["gpus"]), check_chat_template=False) as engine:
        yield lambda prompts, tokens: engine.run(
            [
                Request(text, apply_chat_template=False, sampling=SamplingOptions(max_tokens=tokens, ignore_eos=True))
                for text in prompts
            ]
        )


if __name__ == "__main__":
    if "--worker" in sys.argv:
        _work()
    else:
        typer.run(main)
