"""What a query counts in one process: for Daft's metrics, and for whoever watches the query."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from itertools import zip_longest
from typing import Any

from daft_vllm.engine import EngineFigures, EngineStats, OfflineEngine
from daft_vllm.udf.worker.progress import Channel, channel_of
from daft_vllm.udf.worker.stopping import stop_here_if_asked

WRITE_SECONDS = 0.5
"""How often a worker passes on its counters."""
METRICS = (
    "duplicates",
    "prompt_tokens",
    "cached_tokens",
    "computed_tokens",
    "optimal_tokens",
    "completion_tokens",
    "drafted_tokens",
    "accepted_tokens",
    "media",
    "steps",
    "preemptions",
    "restarts",
)
"""Counters of ``EngineStats`` that go to Daft's metrics."""


class ProgressWriter:
    """Passes on the counters that ``read`` returns through a channel, until that is over.

    Args:
        channel: where they go.
        read: returns the counters, as JSON holds them.
        look: called with the channel as often as the counters are sent, until it returns True.
    """

    def __init__(
        self,
        channel: Channel,
        read: Callable[[], Mapping[str, Any]],
        look: Callable[[Channel], bool] = lambda _: True,
    ) -> None:
        self._channel = channel
        self._look = look
        self._read = read
        self._lock = threading.Lock()
        self.write()
        self._thread = threading.Thread(target=self._run, name="daft-vllm-progress", daemon=True)
        self._thread.start()

    def write(self, *, wait: bool = False) -> None:
        """Pass on the counters now; ``wait`` as in ``Channel.send``."""
        with self._lock:  # read and send under one lock: older counters must not replace newer ones
            self._channel.send(json.dumps(self._read()), wait=wait)

    @property
    def is_over(self) -> bool:
        """Whether nobody watches any more."""
        return self._channel.is_over

    def _run(self) -> None:
        seen = False
        while not self.is_over:
            seen = seen or self._look(self._channel)
            time.sleep(WRITE_SECONDS)
            self.write()


class QueryCounters:
    """Counts a query's rows, and the engine's work since the query began to use it. For any number of threads.

    Queries that use the engine at the same time count in each other's.

    Args:
        model: the model's name, for whoever watches.
        engine: returns the engine. None: there is none yet, and all counters are 0.
        folder: where the counters are kept while somebody watches, see ``channel_of``. None: nowhere.
        board: as in ``channel_of``.
    """

    def __init__(
        self,
        model: str,
        engine: Callable[[], OfflineEngine | None],
        folder: str | None = None,
        board: str | None = None,
    ) -> None:
        self._model = model
        self._engine = engine
        self._folder = folder
        self._board = board
        self._lock = threading.Lock()
        self._before = self._counted = EngineStats()
        self._figures_before: list[EngineFigures] = []
        self._progress: ProgressWriter | None = None
        self._rows = EngineStats()

    def opened(self) -> None:
        """Begin to count what the engine does. It was opened just now, or another query has used it."""
        with self._lock:
            self._begin()
            self._counted = self._before

    def begin(self) -> None:
        """Keep counters for whoever watches this query. Daft runs the expression's next query with the same actor."""
        with self._lock:
            if self._progress is not None and not self._progress.is_over:
                return
            channel = channel_of(self._folder, self._board)
            if channel is None:
                return
            if self._progress is not None:
                self._begin()
                self._rows = EngineStats()
            self._progress = ProgressWriter(channel, self.now, stop_here_if_asked)

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
        """Show the counters to whoever watches, now: a batch has ended, and this process may be ended next."""
        if self._progress is not None:
            self._progress.write(wait=True)

    def since_last_batch(self) -> dict[str, int]:
        """Return how much the engine's counters have grown since the last call, for Daft's metrics."""
        with self._lock:
            now, before = self._stats(), self._counted
            self._counted = now
        return {name: int(getattr(now.since(before), name)) for name in METRICS}

    def now(self) -> Mapping[str, Any]:
        """Return what has been counted since the query began, as ``read_workers`` describes it."""
        rows, stats = self._rows, self._stats().since(self._before)
        engines = zip_longest(self._figures(), self._figures_before, fillvalue=EngineFigures())
        stats.failed = rows.failed
        stats.rows += rows.unsent - rows.retried
        stats.done = max(0, stats.done + rows.unsent - rows.retried)
        stats.unsent += rows.unsent
        stats.stored = rows.stored
        stats.retried = rows.retried
        shown = [asdict(engine.since(before)) for engine, before in engines]
        return {"model": self._model, "written": time.time(), **stats.as_dict(), "engines": shown}

    def _begin(self) -> None:
        self._before, self._figures_before = self._stats(), self._figures()

    def _stats(self) -> EngineStats:
        engine = self._engine()
        return engine.stats() if engine is not None else EngineStats()

    def _figures(self) -> list[EngineFigures]:
        engine = self._engine()
        return engine.figures() if engine is not None else []
