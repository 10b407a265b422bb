"""Counters of engines on any node of a Ray cluster, in a folder of the driver's machine.

Each engine's process reports to a board, an actor of the driver. The driver copies the reports into the folder, where
everything else reads them as those of engines on this machine. What is asked of the engines there goes the other way:
to stop, and not to report any more because a report was removed.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import sys
import threading
import time
import uuid
from collections.abc import Collection
from pathlib import Path
from typing import Any

from daft_vllm.folders import write_whole
from daft_vllm.udf.worker.progress import NAMESPACE, STOPPED, asked_to_stop

logger = logging.getLogger("daft_vllm")

COPY_SECONDS = 0.25
"""How often reports are copied: twice as often as they are sent."""
_ANSWER_SECONDS = 5.0
"""How long the driver waits for the board's answer, each time."""


class Board:
    """Holds the latest report of each worker of a query. It runs as a Ray actor, of which calls never wait."""

    def __init__(self) -> None:
        self._number = 0
        self._reports: dict[str, tuple[int, str]] = {}
        self._over: set[str] = set()
        self._stopped: set[str] = set()
        self._stop: float | None = None

    def report(self, worker: str, counters: str) -> tuple[bool, float | None]:
        """Take a worker's counters. Return whether nobody wants them any more, and the seconds if it is to stop."""
        if worker not in self._over:
            self._number += 1
            self._reports[worker] = self._number, counters
        return worker in self._over, self._stop

    def say_stopped(self, worker: str) -> None:
        """Take note that a worker has stopped."""
        self._stopped.add(worker)

    def asked_to_stop(self) -> float | None:
        """Return how long rows inside vLLM may take to finish if the query is to stop. None: it isn't."""
        return self._stop

    def exchange(
        self, seen: int, over: Collection[str], stop: float | None
    ) -> tuple[int, dict[str, str], Collection[str]]:
        """Return the number of the latest report, the reports after the one with the number ``seen``, and who stopped.

        Args:
            seen: the number that the last exchange returned.
            over: workers whose reports nobody wants any more.
            stop: as ``asked_to_stop`` returns it from now on.
        """
        self._over.update(over)
        self._stop = stop
        new = {worker: text for worker, (number, text) in self._reports.items() if number > seen}
        return self._number, new, self._stopped


def collect_into(folder: str) -> str:
    """Copy the counters of a query on Ray into a folder, while the folder is there. Return the name of its board.

    Ray needs not be initialised yet: Daft does it when it runs the first query.
    """
    copier = _Copier(folder)
    _copiers.append(copier)
    copier.start()
    return copier.board


def collect_now(folder: str) -> None:
    """Copy what the boards for a folder have now. What workers reported when their batches ended is there."""
    for copier in list(_copiers):
        if copier.folder == Path(folder):
            copier.copy()


class _Copier(threading.Thread):
    """Starts a board, and copies what is there."""

    def __init__(self, folder: str) -> None:
        super().__init__(name="daft-vllm-board", daemon=True)
        self.folder = Path(folder)
        self.board = f"daft-vllm-{uuid.uuid4().hex}"
        self._actor: Any = None
        self._lock = threading.Lock()
        self._seen = 0
        self._copied: set[Path] = set()
        self._is_over = False

    def run(self) -> None:
        was_there = False
        while not self._is_over:
            is_there = self.folder.is_dir()
            if was_there and not is_there:
                break
            was_there = is_there
            if is_there and _ray_is_ready() and self._starts():
                self.copy()
            time.sleep(COPY_SECONDS)
        self._actor = None  # Ray ends an actor without handles
        _copiers.remove(self)
        atexit.unregister(self.copy)

    def _starts(self) -> bool:
        """Start the board, if it isn't yet. Return whether it could be started."""
        if self._actor is None:
            try:
                self._actor = _started(self.board)
            except Exception:  # Ray is being initialised, or ends
                logger.debug("no board can be started", exc_info=True)
                return False
            atexit.register(self.copy)  # before Ray's own, which ends the connection
        return True

    def copy(self) -> None:
        """Exchange news with the board. Never raises."""
        with self._lock:
            if self._actor is None or not _ray_is_ready():
                return
            import ray

            try:
                self._exchange(ray)
            except (ray.exceptions.GetTimeoutError, ray.exceptions.ActorUnavailableError, OSError):
                logger.debug("the board doesn't answer, or its reports can't be written", exc_info=True)
            except Exception:
                logger.debug("the board is gone", exc_info=True)
                self._is_over = True

    def _exchange(self, ray: Any) -> None:
        gone = {path for path in self._copied if not path.exists()}
        news = self._actor.exchange.remote(self._seen, [path.stem for path in gone], asked_to_stop(self.folder))
        self._seen, reports, stopped = ray.get(news, timeout=_ANSWER_SECONDS)
        self._copied -= gone
        for worker, counters in reports.items():
            path = self.folder / f"{worker}.json"
            if path in gone:
                continue
            write_whole(path, counters)
            self._copied.add(path)
        for worker in stopped:
            path = (self.folder / worker).with_suffix(STOPPED)
            if not path.exists():
                path.touch()


_copiers: list[_Copier] = []


def _ray_is_ready() -> bool:
    """Whether this process is connected to a Ray cluster. It neither imports Ray nor connects."""
    ray = sys.modules.get("ray")
    with contextlib.suppress(AttributeError):  # it is being imported
        return ray is not None and bool(ray.is_initialized())
    return False


def _started(name: str) -> Any:
    """Start a board on the node of this process, which the query needs in any case. It takes no CPU of the cluster."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(node_id=ray.get_runtime_context().get_node_id(), soft=True)
    options = {"name": name, "namespace": NAMESPACE, "num_cpus": 0, "scheduling_strategy": here}
    return ray.remote(Board).options(**options).remote()
