"""Ways for a worker's counters to whoever watches the query, and for the wish to stop back to the worker.

A query on this machine has a folder, with a file of each worker. On Ray it has a board, an actor that workers on any
node reach; the driver copies what is there into its folder (``daft_vllm.udf.progress.board``).
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from pathlib import Path
from typing import Any, Protocol

from daft_vllm.engine import EngineStats
from daft_vllm.folders import write_whole

NAMESPACE = "daft-vllm"
"""The namespace of boards in Ray."""
STOP = "stop"
"""The file in the folder that asks to stop. It has the seconds that rows inside vLLM may take to finish."""
STOPPED = ".stopped"
"""What the name of a worker's file ends with that says that the worker has stopped."""
_ANSWER_SECONDS = 1.0
"""How long a worker waits for a board at the end of a batch. One without an answer isn't waited for again."""


class Channel(Protocol):
    """One worker's way to whoever watches its query. It never raises, and never blocks for more than a second."""

    @property
    def is_over(self) -> bool:
        """Whether nobody watches this worker any more."""

    def send(self, counters: str, *, wait: bool = False) -> None:
        """Pass on the worker's counters, in place of those before.

        Args:
            counters: JSON.
            wait: return once they are there, if they can get there now.
        """

    def stop_seconds(self) -> float | None:
        """Return how long rows inside vLLM may take to finish if the query is to stop. None: it isn't."""

    def say_stopped(self) -> None:
        """Say that this worker has stopped."""


class FolderChannel:
    """A file of the worker's own in a folder. Whoever watches removes it, or the folder, when he no longer does."""

    def __init__(self, folder: str) -> None:
        self._path = Path(folder) / f"{os.getpid()}-{uuid.uuid4().hex}.json"
        self._written = False

    @property
    def is_over(self) -> bool:
        """Whether the file is gone."""
        return self._written and not self._path.exists()

    def send(self, counters: str, *, wait: bool = False) -> None:
        """Write the file, unless it is gone."""
        with contextlib.suppress(OSError):
            if self.is_over:
                return
            self._written = True
            write_whole(self._path, counters)

    def stop_seconds(self) -> float | None:
        """Look for the file that asks to stop."""
        return asked_to_stop(self._path.parent)

    def say_stopped(self) -> None:
        """Write another file."""
        with contextlib.suppress(OSError):
            self._path.with_suffix(STOPPED).write_text(str(os.getpid()), encoding="utf-8")


class BoardChannel:
    """Reports to a board. At most one is under way: if the board is slow or gone, later ones aren't sent.

    Raises:
        ValueError: there is no board with this name.
    """

    def __init__(self, board: str) -> None:
        self._board = _board(board)
        self._name = f"ray-{uuid.uuid4().hex}"
        self._report: Any = None  # the latest, until it is answered
        self._is_slow = False
        self._is_over = False
        self._stop: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether the board is gone, or says so."""
        return self._is_over

    def send(self, counters: str, *, wait: bool = False) -> None:
        """Send a report, unless one is under way."""
        patience = _ANSWER_SECONDS if wait else 0.0
        if self._is_over or not self._is_answered(patience):
            return
        try:
            self._report = self._board.report.remote(self._name, counters)
        except Exception:
            self._is_over = True
        else:
            self._is_answered(patience)

    def stop_seconds(self) -> float | None:
        """Return what the board has answered last."""
        self._is_answered(0.0)
        return self._stop

    def say_stopped(self) -> None:
        """Tell the board."""
        with contextlib.suppress(Exception):
            self._board.say_stopped.remote(self._name)

    def _is_answered(self, seconds: float) -> bool:
        """Whether the board has answered the latest report within so many seconds. Takes the answer."""
        if self._report is None:
            return True
        import ray

        try:
            answered, _ = ray.wait([self._report], timeout=0.0 if self._is_slow else seconds)
            if not answered:
                self._is_slow = self._is_slow or seconds > 0
                return False
            self._report, report = None, self._report
            self._is_over, self._stop = ray.get(report)
            self._is_slow = False
        except ray.exceptions.ActorUnavailableError:  # for a moment, it says
            pass
        except Exception:  # it is gone, or this process is ending
            self._is_over = True
        return True


def channel_of(folder: str | None, board: str | None) -> Channel | None:
    """Return a new channel of this worker. None: nobody watches the query.

    Args:
        folder: the query's folder. It counts only if there is no board.
        board: the name of the query's board.
    """
    if board is not None:
        with contextlib.suppress(Exception):
            return BoardChannel(board)
        return None
    return FolderChannel(folder) if folder is not None and Path(folder).is_dir() else None


def is_stopped(folder: str | None, board: str | None) -> bool:
    """Whether a query is to stop, or has stopped. Arguments as those of ``channel_of``."""
    if board is not None:
        with contextlib.suppress(Exception):
            import ray

            return ray.get(_board(board).asked_to_stop.remote(), timeout=_ANSWER_SECONDS) is not None
        return False
    return folder is not None and (Path(folder) / STOP).exists()


def asked_to_stop(folder: Path) -> float | None:
    """Return how long rows may take if the query with this folder is to stop. None: it isn't."""
    try:
        return float((folder / STOP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def read_progress(*folders: str) -> dict[str, float]:
    """Return the counters of all workers in ``folders``, named as in ``EngineStats``, and the number of ``workers``.

    They are sums, except ``mean_running``, which is the mean over all steps, and ``peak_running``, the highest.
    ``engines`` is the number of vLLMs that have had rows: one for each worker at least.
    """
    total = dict.fromkeys([*EngineStats.names(), "workers", "engines"], 0.0)
    for worker in read_workers(*folders).values():
        for name in EngineStats.names():
            value = worker.get(name, 0.0)
            total[name] = max(total[name], value) if name == "peak_running" else total[name] + value
        total["workers"] += 1
        total["engines"] += max(1, sum(engine["busy_seconds"] > 0 for engine in worker.get("engines", ())))
    total["mean_running"] = total["running_sum"] / total["steps"] if total["steps"] else 0.0
    return total


def read_workers(*folders: str) -> dict[Path, dict[str, Any]]:
    """Return what each worker in ``folders`` has written, by its file.

    It has the counters of ``EngineStats``; ``engines``, a list of ``EngineFigures``; ``model``; and ``written``, the
    time on the worker's clock, in seconds since 1970.
    """
    found = {}
    for path in (path for folder in folders for path in sorted(Path(folder).glob("*.json"))):
        with contextlib.suppress(OSError, ValueError):
            worker = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(worker, dict):
                found[path] = worker
    return found


def _board(name: str) -> Any:
    import ray

    return ray.get_actor(name, namespace=NAMESPACE)
