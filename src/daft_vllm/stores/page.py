"""The page of a store: what its job did."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from html import escape
from typing import Any

import numpy as np

from daft_vllm.pages.charts import bars, columns, heading, histogram, number, page, paragraph, values
from daft_vllm.stores.rows import SAMPLES, Figures
from daft_vllm.wording import safe_line

_PAUSE = 60.0
"""Seconds without a record that count as a pause: the job wasn't running, or it loaded the model. An engine writes
several times a second, unless its answers are very long."""
_COLUMNS = 60
_LINE = 300
_TEXT = 1200
"""Characters of a prompt, and of an answer, that the page has."""


def page_of(name: str, figures: Figures, *, dollars_per_hour: float = 0.0) -> str:
    """Return the page of a store.

    Args:
        name: of the store.
        figures: its numbers.
        dollars_per_hour: the price of all engines together. 0: no cost is shown.
    """
    seconds, pauses = active_seconds(figures.written)
    body = [paragraph(_state(figures)), values(_totals(figures, seconds, pauses, dollars_per_hour))]
    body += [heading("Rows a second"), *_over_time(figures, seconds, pauses)]
    body += [heading("Prompt tokens of a row"), histogram(figures.prompt_tokens, "prompt tokens")]
    body += [heading("Completion tokens of an answer"), histogram(figures.completion_tokens, "completion tokens")]
    body += [heading("Characters of an answer"), histogram(figures.lengths, "characters")]
    body += [heading("How answers ended"), bars(figures.finished, sum(figures.finished.values()))]
    body += [heading("Rows that failed"), *_failures(figures)]
    body += [heading("Slowest rows"), *_slowest(figures)]
    body += [heading("What was asked"), values({key: safe_line(value, _LINE) for key, value in figures.asked.items()})]
    return page(f"daft-vllm: {safe_line(name, 80)}", body)


def active_seconds(written: np.ndarray) -> tuple[float, float]:
    """Return how long records were written, and how long the pauses between them were.

    Args:
        written: when each was written, in seconds, sorted.
    """
    gaps = np.diff(written)
    pauses = gaps[gaps > _PAUSE]
    return float(gaps.sum() - pauses.sum()) if len(gaps) else 0.0, float(pauses.sum())


def _state(figures: Figures) -> str:
    if not figures.rows:
        return "The store has no row yet."
    first, last = (datetime.fromtimestamp(float(figures.written[i]), UTC) for i in (0, -1))
    return f"{number(figures.rows)} rows, written from {first:%Y-%m-%d %H:%M:%S} to {last:%Y-%m-%d %H:%M:%S} UTC."


def _totals(figures: Figures, seconds: float, pauses: float, dollars_per_hour: float) -> dict[str, str]:
    totals = figures.totals
    prompt, cached = totals["prompt_tokens"], totals["cached_tokens"]
    besides = f", besides {_time(pauses)} of pauses" if pauses else ""
    from_cache = f"{number(cached)} of them ({_percent(cached, prompt)}) from the prefix cache"
    found = {
        "rows": number(figures.rows),
        "failed": number(figures.failures),
        "asked": f"{number(totals['attempt'])} times in all",
        "prompt": f"{number(prompt)} tokens, {from_cache}",
        "completion": f"{number(totals['completion_tokens'])} tokens",
        "time": f"{_time(seconds)} in which rows were written{besides}",
    }
    if seconds:
        found["rate"] = f"{number(figures.rows / seconds)} rows/s"
    if dollars_per_hour:
        cost = dollars_per_hour * seconds / 3600
        each = 1000 * cost / max(1, figures.rows)
        found["cost"] = f"${cost:.4f}, ${each:.4f} per 1,000 rows, pauses and loading left out"
    return found


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f}%" if whole else "0%"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _over_time(figures: Figures, seconds: float, pauses: float) -> list[str]:
    if seconds <= 0:
        return [paragraph("All rows were written at once.", "soft")]
    gaps = np.diff(figures.written)
    at = np.concatenate([[0.0], np.cumsum(np.where(gaps > _PAUSE, 0.0, gaps))])
    bins = int(min(_COLUMNS, max(1, seconds)))
    counts, _ = np.histogram(at, bins=bins, range=(0, seconds))
    rates = (counts * bins / seconds).tolist()
    said = f"Each column is {_time(seconds / bins)}."
    if pauses:
        said += f" Pauses of more than {_PAUSE:.0f} s are left out."
    chart = columns(rates, ("0 s", f"highest column: {number(max(rates))} rows/s", _time(seconds)), "rows a second")
    return [chart, paragraph(said, "soft")]


def _failures(figures: Figures) -> list[str]:
    if not figures.failed:
        return [paragraph("None.", "soft")]
    found = [bars(figures.failed, figures.rows)]
    for code in figures.failed:
        found.append(f"<h3>{escape(code)}</h3>")
        found += [_row(row, row["error_message"] or "") for row in figures.samples.get(code, [])[:SAMPLES]]
    return found


def _slowest(figures: Figures) -> list[str]:
    if not figures.slowest:
        return [paragraph("No time is known.", "soft")]
    return [
        _row(row, f"{_time(row['seconds'])} in vLLM; {number(row['completion_tokens'])} tokens")
        for row in figures.slowest
    ]


def _row(row: Mapping[str, Any], what: str) -> str:
    """Return a row: what there is to say, its name, its prompt, and what the model wrote, which can be opened."""
    name = f"<b>{escape(safe_line(row['row_key'], 80))}</b> " if row["row_key"] is not None else ""
    asked = f"<p>{escape(safe_line(row['prompt'], _LINE))}</p>" if row["prompt"] else ""
    text = row["text"]
    answer = ""
    if text:
        shown = safe_line(text, _TEXT)
        answer = f'<details><summary class="soft">what the model wrote</summary><pre>{escape(shown)}</pre></details>'
    return (
        f'<div class="row"><p>{name}<span class="soft">{escape(safe_line(what, 500))}</span></p>{asked}{answer}</div>'
    )
