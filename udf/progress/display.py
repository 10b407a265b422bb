"""The line that shows how far a job is: in a terminal, in a notebook, or now and then as plain text."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Column

from daft_vllm.engine.setup.log import screen_handlers

READ_SECONDS = 0.5
"""How often counters are read."""
PLAIN_SECONDS = 10.0
"""How often a line is printed where nothing can be drawn."""
MIN_SECONDS = 0.5
"""Rates are shown once rows have been inside vLLM for this long: those of less time say nothing."""
FEW_ROWS = 4
"""The time left is shown once vLLM has answered this many rows: that of fewer says nothing."""


class ProgressDisplay:
    """Shows rows, rows/s, tokens/s, the share of cached prompt tokens, and the time left. Callable from any thread.

    Call it with counters, as ``read_progress`` returns them. Leave the ``with`` block to take the line away; in a
    notebook, and where lines are printed, the last one stays.

    Args:
        model: the model's name, shown while the model loads.
        total: how many rows there are. None: unknown.
        console: where it is drawn. None: stderr.
        plain: print a line every ten seconds if ``console`` is neither a terminal nor a notebook.
    """

    def __init__(self, model: str, total: int | None, *, console: Console | None = None, plain: bool = False) -> None:
        self.total = total
        self._loading = f"loading {model}"
        self._console = console or Console(stderr=True)
        self._plain = plain
        self._last_line = self._started = time.monotonic()
        self._printed = ""
        self._counters: Mapping[str, float] | None = None
        self._bar = Progress(
            SpinnerColumn(),
            BarColumn(8),
            TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis")),
            console=self._console,
            transient=True,
            refresh_per_second=4,
        )
        self._task = self._bar.add_task(self._loading, total=total)
        self._notebook: Any = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> ProgressDisplay:
        if self._console.is_jupyter:
            from IPython.display import display

            self._notebook = display(self._bar, display_id=True)
        elif self._console.is_terminal:
            self._stack.enter_context(_handlers_above(self._bar))
        return self

    def __exit__(self, *exc: object) -> None:
        if self._counters is not None and self._counters["rows"]:
            if self.total is None and self._counters["done"] == self._counters["rows"]:
                self.total = int(self._counters["rows"])  # nothing follows
            self._last_line = -PLAIN_SECONDS
            self(self._counters)
        self._stack.close()

    def __call__(self, counters: Mapping[str, float]) -> None:
        """Show new counters."""
        self._counters = counters
        done, known = counters["done"], counters["rows"]
        total = max(self.total or 0, known)
        text = progress_text(counters, self.total) if known else f"{self._loading}, {self._seconds():.0f} s"
        self._bar.update(self._task, completed=done, total=total or None, description=text)
        if self._notebook is not None:
            self._notebook.update(self._bar)
        elif self._plain and known and not self._console.is_terminal:
            now = time.monotonic()
            if now - self._last_line >= PLAIN_SECONDS and text != self._printed:
                self._last_line, self._printed = now, text
                self._console.print(text, highlight=False)

    def _seconds(self) -> float:
        return time.monotonic() - self._started


def progress_text(counters: Mapping[str, float], total: int | None) -> str:
    """Return the line's text.

    Args:
        counters: as ``read_progress`` returns them. Rates are those of rows that vLLM answered, per second with rows
            inside vLLM, so without the load. There is no time left before ``FEW_ROWS`` are answered, nor before as many
            as are still inside: vLLM answers rows side by side, so the first of many come late.
        total: how many rows there are. None: unknown; the time left is then that of the rows that are known.
    """
    done, known = counters["done"], counters["rows"]
    rows = f"{done:,.0f}/{max(total or 0, known):,.0f} rows{'' if total else ' so far'}"
    engines = max(1.0, counters["workers"], counters.get("engines", 0.0))
    seconds = counters["busy_seconds"] / engines
    answered = done - counters["unsent"]
    if seconds < MIN_SECONDS or answered < 1:
        return rows
    tokens = counters["prompt_tokens"] + counters["completion_tokens"]
    cached = counters["cached_tokens"] / counters["prompt_tokens"] if counters["prompt_tokens"] else 0.0
    rate = answered / seconds
    rates = f"{rows}, {_short(rate)} rows/s, {_short(tokens / seconds)} tokens/s, {cached:.0%} cached"
    asked = 1 - counters["unsent"] / known  # the share, also of the rows that follow
    left = known - done + max(0, (total or 0) - known) * asked
    if not left or answered < max(FEW_ROWS, counters["in_flight"]):
        return rates
    return f"{rates}, {_clock(left / rate)} left"


@contextlib.contextmanager
def _handlers_above(bar: Progress) -> Iterator[None]:
    """Draw a bar inside. What loggers write to the screen comes above it, as what is printed does."""
    out, handlers = (sys.stdout, sys.__stdout__), screen_handlers()
    bar.start()  # replaces sys.stdout and sys.stderr
    swapped = []
    for handler in handlers:
        if type(handler) is logging.StreamHandler:
            swapped.append((handler, handler.stream))
            handler.setStream(sys.stdout if any(handler.stream is one for one in out) else sys.stderr)
    try:
        yield
    finally:
        for handler, stream in swapped:
            handler.setStream(stream)
        bar.stop()


@contextlib.contextmanager
def watching(
    read: Callable[[], Mapping[str, float]], watch: Callable[[Mapping[str, float]], None] | None
) -> Iterator[None]:
    """Pass what ``read`` returns to ``watch``, twice a second inside, and once more at the end."""
    if watch is None:
        yield
        return
    stop = threading.Event()

    def loop() -> None:
        while not stop.wait(READ_SECONDS):
            watch(read())

    thread = threading.Thread(target=loop, name="daft-vllm-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        watch(read())


def _short(number: float) -> str:
    if number < 9.95:
        return f"{number:.1f}"
    return f"{number:.0f}" if number < 9950 else f"{number / 1000:.0f}k"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
