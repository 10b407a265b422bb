"""Daft's queries with a column of ours are shown while they run, and others are left to Daft."""

from __future__ import annotations

import contextlib
import io
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import daft
import pytest
from daft import Series, col
from rich.console import Console

from daft_vllm.engine import EngineStats
from daft_vllm.udf.progress import queries
from daft_vllm.udf.progress.display import ProgressDisplay
from daft_vllm.udf.progress.queries import new_folder, rows_asked, show_progress_of, wants_display


class NoScreen(io.StringIO):
    def isatty(self) -> bool:
        raise ValueError("I/O operation on closed file")


@pytest.mark.parametrize("stderr", [None, NoScreen(), object()])
def test_no_progress_where_there_is_no_stderr(monkeypatch: pytest.MonkeyPatch, stderr: object) -> None:
    monkeypatch.delenv("DAFT_PROGRESS_BAR", raising=False)
    monkeypatch.setattr("sys.stderr", stderr)
    assert not wants_display()


class Fake:
    """Answers rows as an engine does that keeps its counters in ``folder``."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    @daft.method.batch(return_dtype=daft.DataType.string(), batch_size=2)
    def __call__(self, rows: Series) -> Series:
        if "fail" in rows.to_pylist():
            raise ValueError("a row fails")
        assert os.environ["DAFT_PROGRESS_BAR"] == "0", "Daft would draw its own bar"
        assert stat.S_IMODE(Path(self.folder).stat().st_mode) == 0o700
        counters = {**EngineStats(rows=4, done=2).as_dict()}
        (Path(self.folder) / "1.json").write_text(json.dumps(counters))
        return rows


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """A terminal of 80 columns, on which progress is shown."""
    found = io.StringIO()
    console = Console(file=found, force_terminal=True, width=80)
    monkeypatch.setattr(queries, "ProgressDisplay", lambda model, total: ProgressDisplay(model, total, console=console))
    monkeypatch.setattr(queries, "wants_display", lambda: True)
    monkeypatch.delenv("DAFT_PROGRESS_BAR", raising=False)
    monkeypatch.setenv("DAFT_SHOW_QUERY_ID", "0")
    yield found
    daft.context.get_context().detach_subscriber("daft-vllm")
    queries._attached.clear()


def asked(column: str, model: str = "m") -> tuple[daft.Expression, str]:
    """Return a column of fake answers whose progress is shown, and the folder of its counters."""
    folder = new_folder()
    expression = daft.cls(name_override="prompt", max_concurrency=1)(Fake)(folder)(col(column))
    show_progress_of(expression, model, folder)
    return expression, folder


def test_a_query_is_shown_and_leaves_nothing(screen: io.StringIO) -> None:
    expression, folder = asked("q")
    table = daft.from_pydict({"q": ["a", "b", "c"]})
    assert not Path(folder).exists()
    assert table.with_column("a", expression).to_pydict()["a"] == ["a", "b", "c"]
    assert "2/4 rows" in screen.getvalue()
    assert not Path(folder).exists()
    assert "DAFT_PROGRESS_BAR" not in os.environ
    length = len(screen.getvalue())
    table.where(col("q") == "a").collect()
    assert len(screen.getvalue()) == length, "that query asks no model"


def test_a_query_that_fails_leaves_nothing_either(screen: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAFT_PROGRESS_BAR", "true")
    expression, folder = asked("q", "model of my own")
    with pytest.raises(Exception, match="a row fails"):
        daft.from_pydict({"q": ["fail"]}).with_column("a", expression).collect()
    assert "loading model of my own" in screen.getvalue()
    assert not Path(folder).exists()
    assert os.environ["DAFT_PROGRESS_BAR"] == "true"


def test_a_fault_of_the_display_ends_no_query(screen: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(plan: object) -> int:
        raise KeyError("approx_stats")

    monkeypatch.setattr(queries, "rows_asked", broken)
    expression, _ = asked("q")
    assert daft.from_pydict({"q": ["a"]}).with_column("a", expression).to_pydict()["a"] == ["a"]


@pytest.mark.parametrize("kind", ["folder", "link", "file"])
def test_what_is_there_already_is_not_used(tmp_path: Path, kind: str) -> None:
    folder = Path(new_folder())
    {"folder": folder.mkdir, "link": lambda: folder.symlink_to(tmp_path), "file": folder.touch}[kind]()
    try:
        with pytest.raises(FileExistsError):
            queries._Query([queries._Shown("m", str(folder))])
        assert list(tmp_path.iterdir()) == []
    finally:
        folder.rmdir() if kind == "folder" else folder.unlink()


def test_folders_of_killed_scripts_go_and_those_of_running_queries_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "ProgressDisplay", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(queries, "watching", lambda *_: contextlib.nullcontext())
    running, killed = Path(new_folder()), Path(new_folder())
    killed.mkdir()
    query = queries._Query([queries._Shown("m", str(running))])
    for folder in (running, killed):
        os.utime(folder, (0, 0))
    other = queries._Query([queries._Shown("m", new_folder())])
    assert (running.exists(), killed.exists()) == (True, False)
    other.close()
    query.close()
    assert not running.exists()


@pytest.mark.parametrize(("value", "expected"), [(None, True), ("1", True), ("0", False), ("persist", False)])
@pytest.mark.parametrize("terminal", [True, False])
def test_when_it_is_shown(monkeypatch: pytest.MonkeyPatch, value: str | None, expected: bool, terminal: bool) -> None:
    monkeypatch.delenv("DAFT_PROGRESS_BAR", raising=False)
    if value is not None:
        monkeypatch.setenv("DAFT_PROGRESS_BAR", value)
    monkeypatch.setattr("sys.stderr", type("Screen", (io.StringIO,), {"isatty": lambda self: terminal})())
    assert wants_display() is (expected and terminal)


def plan(name: str, kind: str, rows: int, *children: dict[str, Any]) -> dict[str, Any]:
    stats = {"approx_stats": {"num_rows": rows, "acc_selectivity": 1.0}}
    return {"name": name, "type": kind, "approx_stats": stats, "children": list(children)}


SCAN = plan("In Memory Scan", "InMemoryScan", 300)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (plan("prompt", "UDFProject", 300, SCAN), 300),
        (plan("UDF prompt", "AsyncUDFProject", 300, plan("prompt", "UDFProject", 300, SCAN)), 600),
        (plan("Sink", "Write", 1, plan("prompt", "UDFProject", 300, SCAN)), 300),
        (plan("prompt", "UDFProject", 300, plan("Sort", "Sort", 300, SCAN)), 300),
        (plan("prompt", "UDFProject", 600, plan("Concat", "Concat", 600, SCAN, SCAN)), 600),
        (plan("prompt", "UDFProject", 7, plan("Limit 7", "Limit", 7, SCAN)), 7),
        # Daft's estimate forgets an offset.
        (plan("prompt", "UDFProject", 5, plan("Limit 3", "Limit", 5, SCAN)), 3),
        (plan("prompt", "UDFProject", 300, plan("TopN 9999", "TopN", 300, SCAN)), 300),
        (plan("prompt", "UDFProject", 7, plan("Limit 7", "Limit", 7, plan("Filter", "Filter", 285, SCAN))), None),
        (plan("prompt", "UDFProject", 285, plan("Filter", "Filter", 285, SCAN)), None),
        (plan("prompt", "UDFProject", 300, plan("Read Parquet", "ScanTask", 300)), None),
    ],
)
def test_how_many_rows_there_are(given: dict[str, Any], expected: int | None) -> None:
    assert rows_asked(given) == expected
