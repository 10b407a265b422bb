"""Shows the progress of Daft's queries that ask a model, in place of Daft's own bar.

Daft's bar counts whole batches. Daft tells its subscribers when a query is about to run: if it has a column of
``prompt()``, Daft's bar is turned off for it, and ours is drawn.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import daft
from daft.subscribers import Subscriber
from daft.subscribers.events import ExecutionStarted, OptimizationCompleted, QueryFinished
from daft.utils import in_notebook

from daft_vllm.folders import PROGRESS_PREFIX, hold_folder, remove_unheld
from daft_vllm.udf.preflight.connection import on_ray
from daft_vllm.udf.progress.display import ProgressDisplay, watching
from daft_vllm.udf.progress.figures import note_job
from daft_vllm.udf.worker.progress import read_progress

logger = logging.getLogger("daft_vllm")

BAR = "DAFT_PROGRESS_BAR"
QUERY_NAMES = "DAFT_SHOW_QUERY_ID"

_KEEPS_ROWS = {
    "AsyncUDFProject",
    "Concat",
    "IntoBatches",
    "MonotonicallyIncreasingId",
    "Project",
    "Sort",
    "UDFProject",
}
"""Types of operators of a physical plan that give as many rows as they get."""
_numbers = itertools.count()
_NEW_SECONDS = 60
"""A folder that changed since so many seconds may not be held yet."""


def wants_display() -> bool:
    """Whether to show progress: on a terminal or in a notebook, with Daft's native runner, unless it is turned off.

    Not without a folder for temporary files either, where engines keep their counters.
    """
    value = os.environ.get(BAR, "1").strip().lower()
    if value not in ("1", "true") or on_ray():
        return False
    try:
        tempfile.gettempdir()
    except OSError:
        return False
    return _on_terminal() or in_notebook()


def _on_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # None in a process without a console; closed; or an object of the user's
        return False


def new_folder() -> str:
    """Return the name of a new folder for an expression's counters. It is there while a query runs."""
    name = f"{PROGRESS_PREFIX}{os.getpid()}-{next(_numbers)}-{os.urandom(16).hex()}"
    return str(Path(tempfile.gettempdir()) / name)


def show_progress_of(expression: daft.Expression, model: str, folder: str) -> None:
    """Show the progress of later queries with ``expression``.

    Args:
        expression: a column of answers.
        model: the model's name.
        folder: where its engines keep their counters while a query runs, from ``new_folder``.
    """
    with contextlib.suppress(Exception):  # the interface is new in Daft, and may change: then Daft's bar stays
        _subscriber().add(str(expression), _Shown(model, folder))
        os.environ.setdefault(QUERY_NAMES, "0")


class _Shown(NamedTuple):
    model: str
    folder: str


class _Query:
    """A query that is shown while it runs."""

    def __init__(self, shown: list[_Shown]) -> None:
        self._folders = [one.folder for one in shown]
        self._stack = contextlib.ExitStack()
        for folder in self._folders:
            Path(folder).mkdir(mode=0o700)  # never one that is there: somebody else could have made it
            self._stack.callback(os.close, hold_folder(folder))
            self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
            remove_unheld(Path(folder).parent, PROGRESS_PREFIX, _NEW_SECONDS)  # those of scripts that were killed
        for one in shown:
            note_job(one.folder, one.model)
        self.display = ProgressDisplay(" and ".join({one.model: None for one in shown}), None)
        self._stack.enter_context(self.display)
        self._stack.enter_context(watching(self._read, self.display))

    def _read(self) -> Mapping[str, float]:
        return read_progress(*self._folders)

    def close(self) -> None:
        self._stack.close()


class _Queries(Subscriber):
    """Draws a line for each query with a known expression. Daft calls it from several threads."""

    def __init__(self) -> None:
        self._known: dict[str, _Shown] = {}
        self._running: dict[str, _Query] = {}
        self._bar_before: str | None = None
        self._lock = threading.Lock()

    def add(self, expression: str, shown: _Shown) -> None:
        """Show queries that have this expression in their plan."""
        self._known[expression.split("(")[0]] = shown

    def on_optimization_completed(self, event: OptimizationCompleted) -> None:
        with _logged(), self._lock:
            found = [shown for name, shown in self._known.items() if f"{name}(" in event.optimized_plan]
            if not found or self._running or not wants_display():  # one line at a time
                return
            self._running[event.query_id] = _Query(found)
            self._bar_before = os.environ.get(BAR)
            os.environ[BAR] = "0"  # Daft reads it when it begins to execute

    def on_execution_started(self, event: ExecutionStarted) -> None:
        with _logged():
            query = self._running.get(event.query_id)
            if query is not None:
                query.display.total = rows_asked(json.loads(event.physical_plan))

    def on_query_finished(self, event: QueryFinished) -> None:
        with _logged(), self._lock:
            query = self._running.pop(event.query_id, None)
            if query is None:
                return
            query.close()
            if self._bar_before is None:
                os.environ.pop(BAR, None)
            else:
                os.environ[BAR] = self._bar_before


_attached: list[_Queries] = []


def _subscriber() -> _Queries:
    if not _attached:
        queries = _Queries()
        daft.context.get_context().attach_subscriber("daft-vllm", queries)
        _attached.append(queries)
    return _attached[0]


def rows_asked(plan: Mapping[str, Any]) -> int | None:
    """Return how many rows a physical plan gives to columns of ``prompt()``. None: its tables' lengths aren't known."""
    children = plan.get("children", [])
    asked = [rows_asked(child) for child in children]
    if plan.get("name") in ("prompt", "UDF prompt"):
        asked += [_rows(child) for child in children]
    return None if None in asked else sum(rows for rows in asked if rows is not None)


def _rows(plan: Mapping[str, Any]) -> int | None:
    """Return how many rows an operator gives. None: it isn't known before it runs."""
    kind, below = plan.get("type"), [_rows(child) for child in plan.get("children", [])]
    known = [rows for rows in below if rows is not None]
    if len(known) < len(below):
        return None
    if kind == "InMemoryScan":
        return int(plan["approx_stats"]["approx_stats"]["num_rows"])
    if kind in _KEEPS_ROWS:
        return sum(known)
    if kind in ("Limit", "TopN") and (limit := re.search(r"\d+$", plan["name"])):
        return min([int(limit[0]), *known])
    return None


@contextlib.contextmanager
def _logged() -> Iterator[None]:
    """Never let a fault of the display end a query."""
    try:
        yield
    except Exception:
        logger.debug("progress can't be shown", exc_info=True)
