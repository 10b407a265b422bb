"""What is shown of a store: its numbers, its rows, its page. No engine is needed."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from daft_vllm.cli import app
from daft_vllm.engine.requests.outcome import ErrorValue, Outcome
from daft_vllm.engine.store.answers import AnswerStore
from daft_vllm.engine.store.manifest import Command, open_folder, write_command
from daft_vllm.pages.charts import histogram
from daft_vllm.stores.page import active_seconds, page_of
from daft_vllm.stores.rows import figures_of
from tests.engine.store.test_answers import answer, key, record

EVIL = "<script>alert(1)</script>\x1b[31m \"&'</pre>"


def put(folder: Path, *, evil: bool = False) -> Path:
    """Make a store: of 6 rows one is cut off, one is invalid, one is too long, and one was cut off and is repaired."""
    open_folder(folder, {"prompt": EVIL if evil else "col(q)", "max_tokens": "6"})
    cut = Outcome.failed("truncated", "cut off", prompt_tokens=4)._replace(text=EVIL, finish_reason="length", seconds=9)
    wrong = ErrorValue("invalid_output", EVIL)
    store = AnswerStore(folder)
    for number in (1, 2):
        store.append(record(number, answer(number)._replace(seconds=number), row_key=f"k{number}", prompt="why?"))
    store.append(record(3, cut, row_key=EVIL, prompt=EVIL))
    store.append(record(4, answer(4)._replace(error=wrong), row_key="k4", prompt="[bold]why?[/bold]", verdict=True))
    store.append(record(5, Outcome.failed("prompt_too_long", "9 tokens"), attempt=2))
    store.append(record(6, cut, row_key="k6"))
    store.append(record(6, answer(6), row_key="k6", attempt=2))
    store.close()
    return folder


def shown(*arguments: str, fails: bool = False) -> str:
    done = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})
    assert (done.exit_code == 1) is fails, done.output
    return done.output


def test_the_numbers_of_a_store(tmp_path: Path) -> None:
    figures = figures_of(put(tmp_path / "s"))
    assert (figures.rows, figures.failed) == (6, {"truncated": 1, "invalid_output": 1, "prompt_too_long": 1})
    assert figures.finished == {"stop": 4, "length": 1}
    assert figures.totals == {"prompt_tokens": 17, "cached_tokens": 0, "completion_tokens": 12, "attempt": 8}
    assert sorted(figures.prompt_tokens.tolist()) == [1, 2, 4, 4, 6]
    assert [row["key"] for row in figures.slowest] == [key(3), key(2), key(1)]
    assert {code: [row["row_key"] for row in rows] for code, rows in figures.samples.items()} == {
        "truncated": [EVIL],
        "invalid_output": ["k4"],
        "prompt_too_long": [None],
    }


def test_show(tmp_path: Path) -> None:
    folder = str(put(tmp_path / "s"))
    everything = shown("show", folder)
    assert re.search(r"rows that failed\W+3\b", everything)
    assert re.search(r"truncated\W+1\b", everything)
    assert "answer 6" in everything
    assert "[bold]why?[/bold]" in everything, "a row's text is no markup"
    assert "\x1b" not in everything, "nor a command for the terminal"
    failed = shown("show", folder, "--failed")
    assert "answer 6" not in failed
    assert "prompt_too_long: 9 tokens" in failed
    assert "prompt_too_long: 9" not in shown("show", folder, "--errors", "truncated", "--errors", "invalid_output")
    assert "2 rows are shown; --limit N shows more" in shown("show", folder, "--limit", "2")
    found = json.loads(shown("show", folder, "--json", "--errors", "truncated"))
    assert found["counters"]["rows"] == 6
    (row,) = found["rows"]
    assert (row["key"], row["text"], row["error"]["code"], row["attempts"]) == (EVIL, EVIL, "truncated", 1)


@pytest.mark.parametrize("name", ["dead.parquet", "dead.jsonl", "dead.csv"])
def test_rows_that_failed_go_into_a_table(tmp_path: Path, name: str) -> None:
    folder, path = str(put(tmp_path / "s")), tmp_path / name
    shown("show", folder, "--failed", "--output", str(path))
    if path.suffix == ".jsonl":
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    else:
        read: Any = pq.read_table if path.suffix == ".parquet" else pa_csv.read_csv
        rows = read(path).to_pylist()
    assert [(row["key"] or None, row["code"], row["attempts"], row["text"] or None) for row in rows] == [
        (EVIL, "truncated", 1, EVIL),
        ("k4", "invalid_output", 1, "answer 4"),
        (None, "prompt_too_long", 2, None),
    ]
    assert rows[1]["prompt"] == "[bold]why?[/bold]"
    assert "exists already" in shown("show", folder, "--failed", "--output", str(path), fails=True)


def test_a_store_without_failures_gives_a_table_without_rows(tmp_path: Path) -> None:
    open_folder(tmp_path / "s", {})
    shown("show", str(tmp_path / "s"), "--failed", "--output", str(tmp_path / "dead.parquet"))
    assert pq.read_table(tmp_path / "dead.parquet").num_rows == 0
    shown("report", str(tmp_path / "s"), "--output", str(tmp_path / "page.html"))
    assert "no row yet" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show", "{}"], "is no store of answers"),
        (["report", "{}", "--output", "page.html"], "is no store of answers"),
        (["report", "{}", "--output", "page.txt"], "end it in .html"),
        (["show", "{}/s", "--errors", "truncate"], "no error code. Did you mean 'truncated'"),
        (["show", "{}/s", "--json", "--output", "a.csv"], "exclude each other"),
        (["show", "{}/s", "--output", "a.xlsx"], "cannot tell the format"),
        (["retry", "{}/s"], "say what changes"),
        (["retry", "{}/s", "--max-tokens", "-1"], "max_tokens"),
        (["retry", "{}/s", "--max-tokens", "9"], "no command wrote the store"),
        (["retry", "{}", "--retries", "2"], "is no store of answers"),
    ],
)
def test_what_can_not_be_shown(tmp_path: Path, arguments: list[str], said: str) -> None:
    put(tmp_path / "s")
    output = shown(*(one.format(tmp_path) for one in arguments), fails=True)
    assert said in " ".join(output.split())


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (Command("/nowhere", []), "which can't be entered"),
        (Command("/", ["--prompt", "<a secret>"]), "had a secret, which is not kept"),
    ],
)
def test_a_command_that_can_not_be_run_again(tmp_path: Path, command: Command, said: str) -> None:
    write_command(put(tmp_path / "s"), command)
    assert said in " ".join(shown("retry", str(tmp_path / "s"), "--max-tokens", "9", fails=True).split())


class _Page(HTMLParser):
    """Collects the elements of a page, and what they would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.loads += [f"{name}={value}" for name, value in attrs if name in ("src", "href") or name.startswith("on")]


def test_the_page_of_a_store(tmp_path: Path) -> None:
    folder = put(tmp_path / "s", evil=True)
    shown("report", str(folder), "--output", str(tmp_path / "page.html"), "--dollars-per-hour", "2")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    page = _Page(text)
    assert "script" not in page.tags
    assert page.loads == [], "it loads nothing"
    assert "&lt;script&gt;" in text, "what rows say is shown as text"
    assert "\x1b" not in text
    for what in ("Rows a second", "truncated", "k4", "8 times in all", "9 tokens", "per 1,000 rows"):
        assert what in text, what
    assert "exists already" in shown("report", str(folder), "--output", str(tmp_path / "page.html"), fails=True)


def test_pauses_are_left_out_of_the_time() -> None:
    written = np.concatenate([np.arange(0, 10, 0.5), np.arange(5000, 5020, 0.5)])
    assert active_seconds(written) == (29.0, 4990.5)
    assert active_seconds(np.empty(0)) == (0.0, 0.0)


def test_pages_of_many_rows_and_of_equal_ones(tmp_path: Path) -> None:
    figures = figures_of(put(tmp_path / "s"))
    figures.written = np.sort(np.random.default_rng(0).uniform(0, 500, 10_000))
    figures.rows = len(figures.written)
    rates = re.findall(r'aria-label="rows a second">(.*?)</svg>', page_of("s", figures))
    assert rates[0].count("<rect") == 60
    assert histogram(np.full(9, 7), "tokens").count("<rect") == 1
    assert "and more" in histogram(np.array([*range(1000), 10**9]), "tokens")
