"""``python -m benchmarks``: run a suite and report it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.card.command import card_run, card_workloads, described
from benchmarks.card.report.page import write_page
from benchmarks.suite.arms import ARMS
from benchmarks.suite.report import write_report
from benchmarks.suite.runner import STALL_SECONDS, Runner, all_workloads
from benchmarks.suite.suites import COLD, suite_names
from benchmarks.suite.suites import suite as suite_of


def main(
    suite: Annotated[str, typer.Option(help=f"Device: {', '.join(suite_names())}.")] = "cpu",
    arms: Annotated[str, typer.Option(help=f"Comma-separated: {', '.join(ARMS)}. Default: all.")] = "",
    workloads: Annotated[str, typer.Option(help=f"Comma-separated: {', '.join(all_workloads())}. Default: all.")] = "",
    minutes: Annotated[
        float | None, typer.Option(help="Fit into this time: tests, then the arms, then a page.")
    ] = None,
    dry_run: Annotated[bool, typer.Option(help="With --minutes: print the plan, touch no device.")] = False,
    rounds: Annotated[int | None, typer.Option(min=1, help="Repetitions; the arms' order rotates. Default: 3.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of results.json, continued if it is there. Default: out/bench, out/card-SUITE."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Model in place of the suite's: a folder or a hub name; with --minutes a folder or a shape."),
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Type of weights and KV cache, float32 for example.")] = None,
    rows: Annotated[str, typer.Option(help="Rows in place of the suite's: all=16:32 or blog=64:256,cold=32.")] = "",
    stall_seconds: Annotated[float, typer.Option(help="Kill a worker that reports nothing this long.")] = STALL_SECONDS,
    retry_failed: Annotated[bool, typer.Option(help="Run again what was recorded as not run.")] = False,
    report_only: Annotated[bool, typer.Option(help="Run nothing, report what is there.")] = False,
) -> None:
    """Run benchmarks and write results.json, report.md and two plots, or with --minutes page.html, into OUT."""
    _one_of(suite, suite_names(), "--suite")
    if minutes is not None:
        if rounds is not None or rows or stall_seconds != STALL_SECONDS:
            hint = "--rounds, --rows, --stall-seconds"
            raise typer.BadParameter("with --minutes, rows, rounds and limits follow from the time", param_hint=hint)
        try:
            run = card_run(
                suite_of(suite, dtype=dtype),
                minutes,
                out or Path(f"out/card-{suite}"),
                model=model,
                arms=_several_of(arms, [name for name, arm in ARMS.items() if not arm.only], "--arms", []),
                workloads=_several_of(workloads, card_workloads(), "--workloads", []),
                retry_failed=retry_failed,
            )
        except ValueError as e:
            raise typer.BadParameter(str(e)) from None
        if report_only and not run.results.calls:
            raise typer.BadParameter("there are no results there yet", param_hint="--out")
        if dry_run or report_only:
            print(described(run) if dry_run else write_page(run.results))
            raise typer.Exit
        raise typer.Exit(run.run())
    if dry_run:
        raise typer.BadParameter("there is a plan with --minutes only", param_hint="--dry-run")
    out = out or Path("out/bench")
    chosen = suite_of(suite, model, dtype)
    chosen = chosen.with_rows(_rows_of(rows, list(chosen.rows)))
    chosen_arms = _several_of(arms, list(ARMS), "--arms")
    chosen_workloads = _several_of(workloads, all_workloads(), "--workloads")
    if not report_only:
        try:
            runner = Runner(chosen, out, stall_seconds=stall_seconds, say=lambda line: print(line, flush=True))
        except ValueError as e:
            raise typer.BadParameter(str(e), param_hint="--out") from None
        runner.run(chosen_arms, chosen_workloads, rounds or 3, retry_failed=retry_failed)
    print(write_report(out))


def _several_of(text: str, known: list[str], option: str, default: list[str] | None = None) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    return [_one_of(name, known, option) for name in names] or (known if default is None else default)


def _rows_of(text: str, workloads: list[str]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for part in filter(None, text.split(",")):
        name, _, sizes = part.strip().partition("=")
        numbers = tuple(int(size) for size in sizes.split(":") if size.isdigit())
        if not numbers or numbers[0] < 1 or list(numbers) != sorted(set(numbers)) or len(numbers) > 2:
            raise typer.BadParameter(f"{part!r} is not WORKLOAD=SMALL:LARGE", param_hint="--rows")
        names = [w for w in workloads if w != COLD] if name == "all" else [_one_of(name, workloads, "--rows")]
        found.update(dict.fromkeys(names, numbers))
    return found


def _one_of(name: str, known: list[str], option: str) -> str:
    if name not in known:
        raise typer.BadParameter(f"{name!r} is none of {', '.join(known)}", param_hint=option)
    return name


if __name__ == "__main__":
    typer.run(main)
