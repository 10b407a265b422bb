"""What a job did, as a table."""

from __future__ import annotations

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
) -> Table:
    """Return the table.

    Args:
        summary: what the job did.
        title: where the rows were written.
        counts: how many prompts were null and blank.
        skip_blank: whether blank prompts were skipped.
        dollars_per_hour: the price of all engines together. 0: no cost is shown.
    """
    table = Table(title=title, show_header=False)
    table.add_row("rows", str(summary.rows))
    table.add_row("rows that failed", str(summary.failed))
    if counts is not None:
        table.add_row("rows with a null prompt, not asked", str(counts.null))
        table.add_row(f"rows with a blank text{', not asked' if skip_blank else ''}", str(counts.blank))
    table.add_row("seconds, load included", f"{summary.seconds:.1f}")
    if dollars_per_hour:
        cost = dollars_per_hour * summary.seconds / 3600
        table.add_row("cost", f"${cost:.4f}, ${1000 * cost / max(1, summary.rows):.4f} per 1,000 rows")
    table.add_row("prompt tokens", f"{summary.prompt_tokens}")
    table.add_row("of them from the prefix cache", f"{share(summary.cached_tokens, summary.prompt_tokens):.0%}")
    table.add_row("prompt tokens computed", f"{summary.computed_tokens}; at best {summary.optimal_tokens}")
    table.add_row("completion tokens", f"{summary.completion_tokens}")
    table.add_row("rows asked again", f"{summary.retried}")
    table.add_row("rows with the answer of an equal row", f"{summary.duplicates}")
    table.add_row("sequences at once, on average", f"{summary.mean_running:.1f}")
    table.add_row("sequences put back because the KV cache was full", f"{summary.preemptions}")
    table.add_row("times that vLLM died and was started again", f"{summary.restarts}")
    table.add_row("seconds with rows in vLLM", f"{summary.busy_seconds:.1f}")
    table.add_row("a row's wait for vLLM, on average", f"{summary.queue_seconds / max(1, summary.rows):.1f} s")
    for column, notes in summary.notes.items():
        table.add_row(f"the column {column}", "; ".join(notes))
    return table


def share(part: float, whole: float) -> float:
    """Return ``part / whole``, 0 for nothing of nothing."""
    return part / whole if whole else 0.0
