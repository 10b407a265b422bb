"""How many rows a run gets, so that it lasts about as long as it is meant to."""

from __future__ import annotations

GROWTH = 8.0
"""A run has at most this many times the rows of the one before: a small one says little about a large one's speed."""
ENOUGH = 0.6
"""A run that lasts this share of its target is long enough."""
OF_WHAT_IS_LEFT = 0.7
"""A run is planned for this share of the time that is left: the rest is for making its texts, and for being slower."""
MOST_ROWS = 200_000
"""About half a gigabyte of texts."""


def next_rows(rows: int, seconds: float, *, target: float, left: float, agreed: int | None = None) -> int | None:
    """Return the rows of the next run, or None if there is to be none.

    Args:
        rows: of the last run.
        seconds: that it took.
        target: seconds that a run should take.
        left: seconds until the stage ends.
        agreed: rows that another arm ran already: this arm takes as many, or as many as it has time for.
    """
    rate = rows / max(seconds, 1e-6)
    fits = min(int(rate * left * OF_WHAT_IS_LEFT), MOST_ROWS)
    if agreed is not None:
        chosen = min(agreed, fits)
        return chosen if chosen >= 1.5 * rows or (chosen == agreed and chosen != rows) else None
    if seconds >= ENOUGH * target:
        return None
    chosen = min(int(rows * min(GROWTH, target / max(seconds, 1e-6))), fits)
    return chosen if chosen >= 1.5 * rows else None
