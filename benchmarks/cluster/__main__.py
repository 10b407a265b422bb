"""The command: ``python -m benchmarks.cluster --trace blog --replicas 128``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.cluster.figures import append, figures_of, markdown, read
from benchmarks.cluster.plots import write_plots
from benchmarks.cluster.policies import POLICIES
from benchmarks.cluster.policies.base import Setting
from benchmarks.cluster.simulation import run
from benchmarks.cluster.steps import engine_of
from benchmarks.cluster.traces import SHAPES, make_trace
from daft_vllm.udf.prompt import batches_in_flight


def main(
    trace: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(SHAPES)}. May be repeated.")] = None,
    policy: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(POLICIES)}. May be repeated.")] = None,
    replicas: Annotated[list[int] | None, typer.Option(min=1, help="Engines. Default: 128. May be repeated.")] = None,
    scale: Annotated[float, typer.Option(min=0.0001, help="Of the rows and the prefixes.")] = 1.0,
    sequences: Annotated[int, typer.Option(min=1, help="Sequences that an engine runs at once.")] = 64,
    batch: Annotated[int, typer.Option(min=1, help="Rows of a batch.")] = 2048,
    batches: Annotated[
        int | None, typer.Option(min=1, help="Batches that are open at once. Default: as many as prompt() has.")
    ] = None,
    model: Annotated[str, typer.Option()] = "Qwen/Qwen3-8B",
    card: Annotated[str, typer.Option()] = "H100",
    seed: Annotated[int, typer.Option()] = 1,
    again: Annotated[bool, typer.Option(help="Simulate also what is in the results already.")] = False,
    out: Annotated[Path, typer.Option(help="Folder: results.jsonl, table.md and plots.")] = Path("out/cluster"),
) -> None:
    """Simulate tables on clusters, and print a table of how well each policy did."""
    _check(trace or [], list(SHAPES), "--trace")
    _check(policy or [], list(POLICIES), "--policy")
    results = out / "results.jsonl"
    done = {(one.trace, one.policy, one.replicas, one.sequences, one.rows, one.visible) for one in read(results)}
    for name in trace or SHAPES:
        made = make_trace(name, scale=scale, seed=seed)
        longest = max(row.prompt + row.output for row in made.rows)
        for count in replicas or [128]:
            for chosen in policy or POLICIES:
                own = POLICIES[chosen].batch is not None
                most = batches or batches_in_flight(count, media=False)
                visible = len(made.rows) if own else min(len(made.rows), batch * most)
                if (name, chosen, count, sequences, len(made.rows), visible) in done and not again:
                    continue
                try:
                    size, seconds = engine_of(model, card, max_num_seqs=sequences, max_model_len=longest)
                    size.check(longest)
                except ValueError as e:
                    raise typer.BadParameter(str(e)) from None
                setting = Setting(count, size, seconds, made.max_tokens, seed)
                ended = run(made, POLICIES[chosen](setting), batch=batch, batches=most)
                append(results, figures_of(made, chosen, setting, ended))
    figures = read(results)
    text = markdown(figures)
    (out / "table.md").write_text(text, encoding="utf-8")
    print(text)
    try:
        write_plots(figures, out)
    except ImportError:
        print("No plots: matplotlib is not installed.")


def _check(names: list[str], known: list[str], option: str) -> None:
    for name in names:
        if name not in known:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(known)}", param_hint=option)


if __name__ == "__main__":
    typer.run(main)
