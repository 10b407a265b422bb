"""Summarises records: medians, spreads and ratios of each arm on each workload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.suite.arms import arms_of
from benchmarks.suite.records import Record, RunKey, read_answers

ORACLES, PEERS = arms_of("oracle"), arms_of("peer")
REFERENCE = "oracle-inproc"
"""The answers of the other arms are compared with this arm's."""


class Spread(NamedTuple):
    """A figure over the rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """Return the spread of ``values``; None if there are none."""
        return cls(median(values), min(values), max(values)) if values else None

    def __str__(self) -> str:
        return f"{self.median:.3g} ({self.low:.3g}..{self.high:.3g})"


@dataclass(frozen=True)
class Summary:
    """One arm on one workload.

    Attributes:
        rows: the larger number of rows.
        rounds: rounds with figures at that number.
        marginal: rows per second between the two numbers of rows: the constant time of a run cancels out.
        plain: rows per second at the larger number.
        computed: prompt tokens computed, divided by the fewest possible in any order, at the larger number.
        mean_running: running sequences, at the larger number.
        differing: rows with another text than in ``oracle-inproc``, and the rows compared, over all rounds.
        why_not: why there are no figures.
    """

    arm: str
    workload: str
    rows: int
    rounds: int = 0
    marginal: Spread | None = None
    plain: Spread | None = None
    seconds: Spread | None = None
    load_seconds: float | None = None
    computed: float | None = None
    mean_running: float | None = None
    peak_rss_mb: float | None = None
    differing: tuple[int, int] | None = None
    why_not: str | None = None

    @property
    def rate(self) -> float | None:
        """Rows per second for comparisons: the marginal rate, or the plain one with only one number of rows."""
        chosen = self.marginal or self.plain
        return chosen.median if chosen else None


def summarise(records: Sequence[Record], folder: Path | None = None) -> list[Summary]:
    """Summarise records by workload and arm, in the order in which they first appear.

    Args:
        records: runs of one suite.
        folder: where answers are stored. None: they are not compared.
    """
    pairs = dict.fromkeys((record.workload, record.arm) for record in records)
    workloads = dict.fromkeys(workload for workload, _ in pairs)
    ordered = [(workload, arm) for workload in workloads for w, arm in pairs if w == workload]
    return [_summary([r for r in records if (r.workload, r.arm) == pair], folder) for pair in ordered]


def _summary(records: Sequence[Record], folder: Path | None) -> Summary:
    first = records[0]
    good = [record for record in records if record.seconds is not None]
    if not good:
        return Summary(first.arm, first.workload, max(r.rows for r in records), why_not=first.why_not)
    large = max(record.rows for record in records)
    at_large = [record for record in good if record.rows == large]
    ratios = [r.computed_tokens / r.optimal_tokens for r in at_large if r.computed_tokens and r.optimal_tokens]
    loads = [r.load_seconds for r in good if r.load_seconds is not None]
    running = [r.mean_running for r in at_large if r.mean_running is not None]
    peaks = [r.peak_rss_mb for r in good if r.peak_rss_mb is not None]
    return Summary(
        first.arm,
        first.workload,
        large,
        rounds=len(at_large),
        marginal=Spread.of(_marginal_rates(good)),
        plain=Spread.of([large / r.seconds for r in at_large if r.seconds]),
        seconds=Spread.of([r.seconds for r in at_large if r.seconds]),
        load_seconds=median(loads) if loads else None,
        computed=median(ratios) if ratios else None,
        mean_running=median(running) if running else None,
        peak_rss_mb=max(peaks) if peaks else None,
        differing=_differing(good, folder) if folder is not None else None,
        why_not=next((r.why_not for r in records if r.why_not), None),
    )


def _marginal_rates(records: Sequence[Record]) -> list[float]:
    """Return one rate per round: the difference in rows over the difference in seconds."""
    rates = []
    for round_number in sorted({record.round for record in records}):
        runs = sorted((r for r in records if r.round == round_number), key=lambda r: r.rows)
        small, large = runs[0], runs[-1]
        if small.seconds and large.seconds and large.rows > small.rows and large.seconds > small.seconds:
            rates.append((large.rows - small.rows) / (large.seconds - small.seconds))
    return rates


def _differing(records: Sequence[Record], folder: Path) -> tuple[int, int] | None:
    differing = compared = 0
    for record in records:
        mine = read_answers(folder, record.key)
        reference = read_answers(folder, RunKey(REFERENCE, record.workload, record.round, record.rows))
        if mine is not None and reference is not None and len(mine) == len(reference):
            compared += len(mine)
            differing += sum(a != b for a, b in zip(mine, reference, strict=True))
    return (differing, compared) if compared else None


def ratio(summary: Summary, others: Sequence[Summary], arms: Sequence[str]) -> float | None:
    """Return the arm's rate divided by the best rate of any of ``arms`` on the same workload."""
    rates = [o.rate for o in others if o.workload == summary.workload and o.arm in arms and o.rate]
    return summary.rate / max(rates) if rates and summary.rate else None
