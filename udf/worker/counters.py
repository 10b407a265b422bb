"""What a query counts in one process: for Daft's metrics, and for whoever watches the query."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from daft_vllm.engine import EngineStats
from daft_vllm.udf.worker.progress import ProgressWriter
from daft_vllm.udf.worker.stopping import stop_here_if_asked

METRICS = (
    "duplicates",
    "prompt_tokens",
    "cached_tokens",
    "computed_tokens",
    "optimal_tokens",
    "completion_tokens",
    "media",
    "steps",
    "preemptions",
    "restarts",
)
"""Counters of ``EngineStats`` that go to Daft's metrics."""


class QueryCounters:
    """Counts a query's rows, and the engine's work since the query began to use it. For any number of threads.

    Queries that use the engine at the same time count in each other's.

    Args:
        folder: where the counters are kept while somebody watches, see ``ProgressWriter``. None: nowhere.
        engine: returns the engine's counters. Those of no engine are all 0.
    """

    def __init__(self, folder: str | None, engine: Callable[[], EngineStats]) -> None:
        self._folder = folder
        self._engine = engine
        self._lock = threading.Lock()
        self._before = self._counted = EngineStats()
        self._progress: ProgressWriter | None = None
        self._rows = EngineStats()

    def opened(self) -> None:
        """Begin to count what the engine does. It was opened just now, or another query has used it."""
        with self._lock:
            self._before = self._counted = self._engine()

    def begin(self) -> None:
        """Keep counters for whoever watches this query. Daft runs the expression's next query with the same actor."""
        with self._lock:
            if self._folder is None or not Path(self._folder).is_dir():
                return
            if self._progress is not None:
                if not self._progress.is_over:
                    return
                self._before = self._engine()
                self._rows = EngineStats()
            self._progress = ProgressWriter(self._folder, self.now, stop_here_if_asked)

    def add(self, *, failed: int = 0, unsent: int = 0, stored: int = 0, retried: int = 0) -> None:
        """Count rows.

        Args:
            failed: those without a value. A row that is asked again counts once, when its batch ends.
            unsent: those that the engine doesn't see, besides the stored ones.
            stored: those whose answer was in the store.
            retried: those that are asked again.
        """
        with self._lock:
            self._rows.failed += failed
            self._rows.unsent += unsent + stored
            self._rows.stored += stored
            self._rows.retried += retried

    def write(self) -> None:
        """Show the counters to whoever watches, now."""
        if self._progress is not None:
            self._progress.write()

    def since_last_batch(self) -> dict[str, int]:
        """Return how much the engine's counters have grown since the last call, for Daft's metrics."""
        with self._lock:
            now, before = self._engine(), self._counted
            self._counted = now
        return {name: int(getattr(now.since(before), name)) for name in METRICS}

    def now(self) -> Mapping[str, float]:
        """Return the counters since the query began."""
        rows, stats = self._rows, self._engine().since(self._before)
        stats.failed = rows.failed
        stats.rows += rows.unsent - rows.retried
        stats.done = max(0, stats.done + rows.unsent - rows.retried)
        stats.unsent += rows.unsent
        stats.stored = rows.stored
        stats.retried = rows.retried
        return stats.as_dict()
