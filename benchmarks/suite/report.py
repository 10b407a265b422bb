"""The report of a suite: a Markdown table for each workload, and plots."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.suite.plots import write_plots
from benchmarks.suite.records import Record, ResultsFile
from benchmarks.suite.summary import ORACLES, PEERS, Spread, Summary, ratio, summarise


def markdown(summaries: Sequence[Summary]) -> str:
    """Return one table per workload: rates, ratios, tokens."""
    parts = []
    for workload in dict.fromkeys(summary.workload for summary in summaries):
        mine = [summary for summary in summaries if summary.workload == workload]
        peers = [peer for peer in PEERS if any(s.arm == peer and s.rate for s in mine)]
        heads = ["arm", "rounds", "rows/s, marginal", "rows/s, plain", "seconds", "/ oracle"]
        heads += [f"/ {peer}" for peer in peers]
        heads += ["computed / optimal", "running", "load s", "peak MiB", "differing rows"]
        lines = [f"## {workload}, {max(s.rows for s in mine)} rows", "", _line(heads), _line(["---"] * len(heads))]
        for one in mine:
            cells = [one.arm, str(one.rounds), _text(one.marginal), _text(one.plain), _text(one.seconds)]
            cells += [_number(ratio(one, mine, ORACLES)), *(_number(ratio(one, mine, [peer])) for peer in peers)]
            cells += [_number(one.computed), _number(one.mean_running), _number(one.load_seconds)]
            cells += [f"{one.peak_rss_mb:.0f}" if one.peak_rss_mb else ""]
            cells += [f"{one.differing[0]} of {one.differing[1]}" if one.differing else ""]
            lines.append(_line(cells))
        reasons = [f"- {one.arm}: {one.why_not}" for one in mine if one.why_not]
        if reasons:
            lines += ["", "Not run, or not in every round:", "", *reasons]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def write_report(out: Path) -> str:
    """Write ``report.md`` and the plots beside ``results.json`` and return the report's text.

    The plots need matplotlib; without it there are none, and the text says so.
    """
    records = ResultsFile(out / "results.json").records
    summaries = summarise(records, out)
    text = _heading(records) + markdown(summaries)
    try:
        plots = write_plots(summaries, out)
        text += "".join(f"\n![{path.stem}]({path.name})\n" for path in plots)
    except ImportError:
        text += "\nNo plots: matplotlib is not installed.\n"
    (out / "report.md").write_text(text, encoding="utf-8")
    return text


def _heading(records: Sequence[Record]) -> str:
    if not records:
        return "# Benchmarks\n\nNo records.\n"
    first = records[0]
    packages = ", ".join(f"{name} {version}" for name, version in first.versions.items())
    return (
        f"# Benchmarks\n\nDevice: {first.device}. {packages}.\n\nFigures are the median (lowest..highest) over rounds. "
        "`/ oracle` is rows/s over those of the faster oracle, `/ peer` over that peer's.\n\n"
    )


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _text(spread: Spread | None) -> str:
    return str(spread) if spread else ""


def _number(value: float | None) -> str:
    return f"{value:.2f}" if value is not None else ""
