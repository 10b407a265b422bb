"""What a job did, as a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from daft_vllm.job import PromptCounts, Summary


def summary_table(
    summary: Summary,
    title: str,
    *,
    counts: PromptCounts | None = None,
    skip_blank: bool = False,
    dollars_per_hour: float = 0.0,
    engines: int = 1,
) -> Table:
    """Return the table. Counts of 0 are left out, and counters that did not come back are said to be unknown.

    Args:
        summary: what the job did.
        title: where the rows were written.
        counts: how many prompts were null and blank.
        skip_blank: whether blank prompts were skipped.
        dollars_per_hour: the price of all engines together. 0: no cost is shown.
        engines: how many engines there were.
    """
    table = Table(title=title, show_header=False)
    table.add_row("rows", str(summary.rows))
    table.add_row("rows that failed", str(summary.failed))

    def count(name: str, number: int) -> None:
        if number:
            table.add_row(name, str(number))

    if counts is not None:
        count("rows with a null prompt, not asked", counts.null)
        count(f"rows with a blank text, {'not ' if skip_blank else ''}asked", counts.blank)
    table.add_row("seconds, load included", f"{summary.seconds:.1f}")
    if not summary.known:
        table.add_row("tokens, and other counters", "unknown: those of some engines did not come back")
    if dollars_per_hour:
        for name, seconds in (
            ("cost, load included", summary.seconds),
            ("cost without the load", summary.busy_seconds / engines),
        )[: 2 if summary.known else 1]:
            cost = dollars_per_hour * seconds / 3600
            table.add_row(name, f"${cost:.4f}, ${1000 * cost / max(1, summary.rows):.4f} per 1,000 rows")
    if summary.known:
        _add_counters(table, summary, count)
    for column, notes in summary.notes.items():
        table.add_row(f"the column {column}", "; ".join(notes))
    return table


def _add_counters(table: Table, summary: Summary, count: Callable[[str, int], None]) -> None:
    table.add_row("prompt tokens", f"{summary.prompt_tokens}")
    if summary.cached_tokens:
        table.add_row("of them from the prefix cache", f"{share(summary.cached_tokens, summary.prompt_tokens):.0%}")
    table.add_row("prompt tokens computed", f"{summary.computed_tokens}; at best {summary.optimal_tokens}")
    table.add_row("completion tokens", f"{summary.completion_tokens}")
    if summary.accepted_tokens:
        right = share(summary.accepted_tokens, summary.drafted_tokens)
        part = share(summary.accepted_tokens, summary.completion_tokens)
        table.add_row("of them guessed, and verified", f"{part:.0%}; {right:.0%} of the guesses were right")
    count("rows whose answer was in the store", summary.stored)
    count("rows asked again", summary.retried)
    count("rows with the answer of an equal row", summary.duplicates)
    table.add_row("sequences at once, on average", f"{summary.mean_running:.1f}")
    count("sequences put back because the KV cache was full", summary.preemptions)
    count("times that vLLM died and was started again", summary.restarts)
    table.add_row("seconds with rows in vLLM", f"{summary.busy_seconds:.1f}")
    wait = summary.queue_seconds / max(1, summary.rows)
    if wait >= 0.05:
        table.add_row("a row's wait for vLLM, on average", f"{wait:.1f} s")


def share(part: float, whole: float) -> float:
    """Return ``part / whole``, 0 for nothing of nothing."""
    return part / whole if whole else 0.0
