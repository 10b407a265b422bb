"""Pieces of HTML: tables, lists, bars, histograms. All text is escaped, wherever it comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

import numpy as np

from daft_vllm.pages.style import STYLE

MORE_STYLE = """
.chart { margin: .8rem 0 .4rem } .chart svg { display: block; width: 100%; height: 120px }
.chart rect { fill: var(--ours) } .chart .axis { stroke: var(--line); stroke-width: 1 }
.ends { display: flex; justify-content: space-between; font-size: .85rem; color: var(--soft); gap: 1rem }
.row { border-bottom: 1px solid var(--line); padding: .5rem 0 } .row p { margin: .15rem 0; overflow-wrap: anywhere }
.code { color: var(--bad) } pre { white-space: pre-wrap; overflow-wrap: anywhere; font: .85rem ui-monospace, monospace;
  margin: .2rem 0; max-height: 12rem; overflow-y: auto }
"""


def page(title: str, body: Sequence[str]) -> str:
    """Return a page of HTML. It loads nothing, and a browser may run no script on it.

    Args:
        title: plain text.
        body: its elements, as HTML.
    """
    head = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{escape(title)}</title>'
        f"<style>{STYLE}{MORE_STYLE}</style></head><body>\n<h1>{escape(title)}</h1>\n"
    )
    return head + "\n".join(body) + "\n</body></html>\n"


def number(value: float) -> str:
    """Return a number as short as it is readable."""
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def heading(text: str) -> str:
    """Return a heading. The text is plain."""
    return f"<h2>{escape(text)}</h2>"


def paragraph(text: str, kind: str = "") -> str:
    """Return a paragraph. The text is plain."""
    return f'<p class="{escape(kind)}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def values(pairs: Mapping[str, str]) -> str:
    """Return a list of names and values, both plain text."""
    return f"<dl>{''.join(f'<dt>{escape(k)}</dt><dd>{escape(v)}</dd>' for k, v in pairs.items())}</dl>"


def bars(counts: Mapping[str, int], whole: int) -> str:
    """Return a bar for each count, as a share of the whole."""
    return "\n".join(
        f'<div class="bar"><div><b>{escape(name)}</b><span class="rate">{number(count)} '
        f'<span class="soft">{100 * count / max(1, whole):.1f}%</span></span></div>'
        f'<svg role="img" aria-label="{escape(name)}: {count}"><rect class="track" width="100%" height="14" rx="3"/>'
        f'<rect class="fill" width="{100 * count / max(1, whole):.2f}%" height="14" rx="3"/></svg></div>'
        for name, count in counts.items()
    )


def columns(heights: Sequence[float], ends: tuple[str, str, str], label: str) -> str:
    """Return a chart of columns beside each other.

    Args:
        heights: of the columns.
        ends: what is below its left end, its middle, and its right end.
        label: what a reader hears who doesn't see it.
    """
    most, width = max(heights, default=0) or 1, 100 / max(1, len(heights))
    rects = "".join(
        f'<rect x="{i * width:.3f}%" y="{100 - 100 * height / most:.2f}%" width="{max(0.1, width * 0.88):.3f}%" '
        f'height="{100 * height / most:.2f}%"/>'
        for i, height in enumerate(heights)
        if height
    )
    axis = '<line class="axis" x1="0" x2="100%" y1="100%" y2="100%"/>'
    below = "".join(f"<span>{escape(end)}</span>" for end in ends)
    return (
        f'<div class="chart"><svg role="img" aria-label="{escape(label)}">{rects}{axis}</svg>'
        f'<div class="ends">{below}</div></div>'
    )


def histogram(found: np.ndarray, what: str, bins: int = 40) -> str:
    """Return a histogram of numbers, which are at least 0, and a line with their mean and some quantiles.

    The last column has all that are above the 99th percentile too, so that a few large ones don't hide the others.
    """
    if not len(found):
        return paragraph(f"No row has {what}.", "soft")
    low, median, high, top = (float(np.quantile(found, share)) for share in (0, 0.5, 0.99, 1))
    last = max(high, low + 1)
    bins = int(min(bins, max(1, last - low)))
    counts, _ = np.histogram(np.minimum(found, last), bins=bins, range=(low, last))
    said = f"Mean {number(float(found.mean()))}, median {number(median)}, "
    said += f"99% at most {number(high)}, largest {number(top)}."
    beyond = "" if top <= last else " and more"
    ends = (number(low), f"highest column: {number(int(counts.max()))} rows", f"{number(last)}{beyond}")
    return columns(counts.tolist(), ends, f"{what}: {said}") + paragraph(said, "soft")
