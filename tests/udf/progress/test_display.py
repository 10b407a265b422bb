"""The line of progress: what it says, and where it is drawn."""

from __future__ import annotations

import io
import logging
import sys
from types import ModuleType, SimpleNamespace

import pytest
from rich.console import Console

from daft_vllm.engine import EngineStats, Outcome
from daft_vllm.udf.progress.display import ProgressDisplay, progress_text, watching


def counters(**given: float) -> dict[str, float]:
    return {**EngineStats().as_dict(), "workers": 1.0, **given}


HALF = counters(
    rows=2048, done=1024, busy_seconds=8.0, prompt_tokens=80_000, completion_tokens=20_000, cached_tokens=36_000
)


@pytest.mark.parametrize(
    ("given", "total", "expected"),
    [
        (HALF, 2048, "1,024/2,048 rows, 128 rows/s, 12k tokens/s, 45% cached, 0:08 left"),
        (HALF, None, "1,024/2,048 rows so far, 128 rows/s, 12k tokens/s, 45% cached, 0:08 left"),
        (HALF, 1_000_000, "1,024/1,000,000 rows, 128 rows/s, 12k tokens/s, 45% cached, 2:10:04 left"),
        # Four engines at once: their time is a sum.
        ({**HALF, "workers": 4.0}, 2048, "1,024/2,048 rows, 512 rows/s, 50k tokens/s, 45% cached, 0:02 left"),
        # A short job: a rate would be absurd.
        (counters(rows=3, done=3, busy_seconds=0.001, prompt_tokens=99), 3, "3/3 rows"),
        (counters(rows=300, busy_seconds=9.0), 300, "0/300 rows"),
        (counters(rows=3, done=3, busy_seconds=9.0), 3, "3/3 rows, 0.3 rows/s, 0.0 tokens/s, 0% cached"),
        # Rows that vLLM never got are quick: they say nothing about the others.
        (counters(rows=30, done=20, unsent=20, busy_seconds=5.0), 30, "20/30 rows"),
        (
            counters(rows=30, done=20, unsent=10, busy_seconds=5.0, in_flight=10),
            30,
            "20/30 rows, 2.0 rows/s, 0.0 tokens/s, 0% cached, 0:05 left",
        ),
        (
            counters(rows=30, done=20, unsent=10, busy_seconds=5.0),
            50,
            "20/50 rows, 2.0 rows/s, 0.0 tokens/s, 0% cached, 0:12 left",
        ),
        # The first of many that run side by side say nothing about when the others are done.
        (
            counters(rows=225, done=9, in_flight=216, busy_seconds=10.0),
            225,
            "9/225 rows, 0.9 rows/s, 0.0 tokens/s, 0% cached",
        ),
        (counters(rows=9, done=1, busy_seconds=1.0), 9, "1/9 rows, 1.0 rows/s, 0.0 tokens/s, 0% cached"),
        # An estimate that was too low.
        (counters(rows=20, done=10), 15, "10/20 rows"),
    ],
)
def test_what_it_says(given: dict[str, float], total: int | None, expected: str) -> None:
    assert progress_text(given, total) == expected


def test_a_terminal_of_80_columns_has_one_line_and_what_is_logged_is_above(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    handler, own = logging.StreamHandler(screen), logging.StreamHandler(screen)
    logging.getLogger().addHandler(handler)
    logging.getLogger("own").addHandler(own)
    logging.getLogger("own").propagate = False
    try:
        console = Console(file=screen, force_terminal=True, width=80)
        with ProgressDisplay("m", 1_000_000, console=console) as display:
            display(counters())
            display(HALF)
            display._bar.refresh()
            logging.getLogger("daft_vllm").warning("a warning")
            logging.getLogger("own").warning("of a logger with a handler of its own")
            drawn = screen.getvalue()
    finally:
        logging.getLogger().removeHandler(handler)
        logging.getLogger("own").removeHandler(own)
    assert "1,024/1,000,000 rows" in drawn
    assert "\x1b[1A" not in drawn, "it has two lines"
    assert "a warning\n" in drawn
    assert "\x1b[2Kof a logger with a handler of its own\n" in drawn, "the line of progress is taken away first"
    assert handler.stream is own.stream is screen


def test_plain_lines_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("daft_vllm.udf.progress.display.time", SimpleNamespace(monotonic=lambda: now))
    for plain, expected in ((True, ["1,034/2,048", "1,044/2,048", "1,049/2,048"]), (False, [])):
        now = 0.0
        screen = io.StringIO()
        with ProgressDisplay("m", 2048, console=Console(file=screen, width=80), plain=plain) as display:
            for _ in range(50):
                now += 0.5
                display({**HALF, "done": 1024 + int(now)})
        lines = screen.getvalue().splitlines()
        assert [line.split()[0] for line in lines] == expected


def test_the_last_line_knows_that_nothing_follows() -> None:
    screen = io.StringIO()
    with ProgressDisplay("m", None, console=Console(file=screen, width=80), plain=True) as display:
        display(counters(rows=6, done=3))
        display(counters(rows=6, done=6))
    assert screen.getvalue() == "6/6 rows\n"


def test_a_notebook_has_one_output_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    class Handle:
        def update(self, bar: object) -> None:
            data = bar._repr_mimebundle_(include=[], exclude=[])  # type: ignore[attr-defined]
            shown.append(data["text/html"])

    def display(bar: object, *, display_id: bool) -> Handle:
        assert display_id
        return Handle()

    ipython = ModuleType("IPython.display")
    ipython.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", ipython)
    with ProgressDisplay("m", 2048, console=Console(force_jupyter=True)) as progress:
        progress(counters())
        progress(HALF)
    assert "loading m, 0 s" in shown[0]
    assert "1,024/2,048 rows, 128 rows/s" in shown[-1]


def test_the_last_counters_are_shown_though_a_job_takes_no_time() -> None:
    shown: list[float] = []
    with watching(lambda: counters(done=7), lambda given: shown.append(given["done"])):
        pass
    assert shown == [7]


def test_what_was_computed_is_not_less_than_the_least_possible() -> None:
    """Rows that are asked again find all of their prompt in the cache; the queue counts their last block again."""
    before = EngineStats(optimal_tokens=100, computed_tokens=150)
    after = EngineStats(optimal_tokens=260, computed_tokens=270)
    assert after.since(before).optimal_tokens == after.since(before).computed_tokens == 120
    stats = EngineStats()
    stats.finish(Outcome("a", "stop", prompt_tokens=10, cached_tokens=9))
    assert stats.computed_tokens == 1
