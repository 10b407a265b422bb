"""The command: ``python -m benchmarks.drafts --sequences 4``."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from benchmarks.drafts.worker import ARMS
from benchmarks.drafts.workloads import WORKLOADS
from daft_vllm.model_configs import resolve_model


class _Arm:
    """A process with an engine."""

    def __init__(self, name: str, model: str, sequences: int, log: Path) -> None:
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.drafts.worker", name, model, str(sequences)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
            )
        self.opened = self._answer()

    def run(self, workload: str, rows: int, seed: int) -> dict[str, Any]:
        assert self._process.stdin is not None
        print(json.dumps({"name": workload, "rows": rows, "seed": seed}), file=self._process.stdin, flush=True)
        return self._answer()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        found: dict[str, Any] = json.loads(line) if line else {"problem": "it ended"}
        return found


def main(
    sequences: Annotated[int, typer.Option(min=1, help="Sequences that an engine runs at once.")] = 4,
    rows: Annotated[int, typer.Option(min=1, help="Rows of a round. Default: 8 for each sequence, at least 32.")] = 0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, each with other prompts; arms take turns.")] = 3,
    workload: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(WORKLOADS)}. May be repeated.")] = None,
    arm: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(ARMS)}. May be repeated.")] = None,
    model: Annotated[str, typer.Option()] = "smollm2-135m",
    out: Annotated[Path, typer.Option(help="Folder: the engines' log and all figures.")] = Path("out/drafts"),
) -> None:
    """Print rows/s and steps of each arm over those of daft-vllm without guesses, in the same round."""
    out.mkdir(parents=True, exist_ok=True)
    wanted, rows = arm or [*ARMS], rows or max(32, 8 * sequences)
    folder = resolve_model(model)
    arms: dict[str, _Arm] = {}
    try:
        for name in wanted:
            arms[name] = _Arm(name, folder, sequences, out / f"{name}.log")
            if "problem" in arms[name].opened:
                print(f"{name} doesn't run: {arms[name].opened['problem']}")
                del arms[name]
        print(f"{sequences} sequences, {rows} rows a round, {rounds} rounds\n\n{_HEAD}", flush=True)
        for name in workload or WORKLOADS:
            _compare(name, arms, rows, rounds, out / f"figures-{sequences}.jsonl")
    finally:
        for one in arms.values():
            one.close()


_HEAD = (
    "| workload | arm | rows/s | over without guesses, by round | steps over without | guesses right | differ |\n"
    "|---|---|--:|---|--:|--:|--:|"
)


def _compare(workload: str, arms: dict[str, _Arm], rows: int, rounds: int, figures: Path) -> None:
    """Run a workload on all arms in turns, and print their lines."""
    for one in arms.values():
        one.run(workload, max(8, rows // 4), 0)  # kernels, grammars, and what there is to learn from the first rows
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    names = [*arms]
    for number in range(1, rounds + 1):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            found[name].append(arms[name].run(workload, rows, number))
    for name, results in found.items():
        if any("problem" in one for one in results):
            print(f"| {workload} | {name} | ended | | | | |", flush=True)
            continue
        base = found.get("off", results)
        with figures.open("a", encoding="utf-8") as file:
            for result in results:
                line = {"workload": workload, "arm": name, "seconds": result["seconds"], **result["counts"]}
                file.write(json.dumps(line) + "\n")
        print(_line(workload, name, results, base, rows), flush=True)


def _line(workload: str, arm: str, results: Sequence[dict[str, Any]], base: Sequence[dict[str, Any]], rows: int) -> str:
    ratios = [one["seconds"] / result["seconds"] for one, result in zip(base, results, strict=True)]
    steps = sum(one["counts"]["steps"] for one in results) / sum(one["counts"]["steps"] for one in base)
    drafted = sum(one["counts"].get("drafted_tokens", 0) for one in results)
    accepted = sum(one["counts"].get("accepted_tokens", 0) for one in results)
    differ = sum(
        a != b for one, two in zip(results, base, strict=True) for a, b in zip(one["texts"], two["texts"], strict=True)
    )
    rate = rows / median(one["seconds"] for one in results)
    spread = f"{median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})"
    right = f"{accepted / drafted:.0%}" if drafted else ""
    return f"| {workload} | {arm} | {rate:.1f} | {spread} | {steps:.2f} | {right} | {differ} |"


if __name__ == "__main__":
    typer.run(main)
