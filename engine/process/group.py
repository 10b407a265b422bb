"""Several vLLMs behind one queue."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace

from daft_vllm.engine.process.core import Core
from daft_vllm.engine.process.thread import EngineThread
from daft_vllm.engine.requests.outcome import Outcome
from daft_vllm.engine.requests.stats import EngineFigures, EngineStats
from daft_vllm.engine.scheduling.ledger import Ledger
from daft_vllm.engine.scheduling.row import Call, Row
from daft_vllm.engine.setup.config import EngineConfig
from daft_vllm.errors import DaftVLLMError, EngineClosedError, EngineDiedError

logger = logging.getLogger("daft_vllm")


class EngineGroup:
    """One account of rows, and a thread for each vLLM that answers them. Any thread may call the methods.

    Rows are answered as soon as the first vLLM is ready. The others then load side by side, unless they share a GPU. If
    a vLLM dies, those of its rows that were not inside it go to the others. If it can't be started again, all of its
    rows do.

    Args:
        config: how to start each of them.
        variables: for each vLLM, environment variables of its own, such as the mask of its GPUs.
    """

    def __init__(self, config: EngineConfig, variables: Sequence[Mapping[str, str]] = ({},)) -> None:
        self._ledger = Ledger()
        self._lock = threading.RLock()  # outcomes call others, who may submit rows
        self._over: DaftVLLMError | None = None
        first, *others = variables
        self._first = EngineThread(config, self._ledger, first, self._ended)
        self._threads = [self._first]
        self._others = others

    def start(self) -> None:
        """Block until the first model is loaded. The other vLLMs then start by themselves."""
        self._first.start()
        same = {**self._first.config.engine_args, "max_model_len": self.core.max_model_len}
        for variables in self._others:
            thread = EngineThread(replace(self._first.config, engine_args=same), self._ledger, variables, self._ended)
            self._threads.append(thread)
            thread.start_later()

    @property
    def core(self) -> Core:
        """The first vLLM. The others, and those after a restart, differ from it only in their processes."""
        return self._first.core

    @property
    def process_ids(self) -> list[int]:
        """Ids of the processes of the latest vLLMs."""
        return [pid for thread in self._threads for pid in thread.process_ids]

    @property
    def is_over(self) -> bool:
        """Whether all vLLMs have ended for good, or the group was closed."""
        return self._over is not None

    def raise_if_over(self) -> None:
        """Raise a new copy of the error that ended this group, if it has ended."""
        if self._over is not None:
            raise type(self._over)(*self._over.args)

    def submit(self, call: Call, rows: list[Row], finished: list[tuple[int, Outcome]]) -> None:
        """Take a call's rows. ``finished`` has the outcomes of rows that need no generation."""
        self._ledger.count_expected(len(rows), [outcome for _, outcome in finished])
        for index, outcome in finished:
            call.put(index, outcome)
        if not rows:
            return
        with self._lock:  # so that a group that ends now doesn't overlook them
            if self._over is not None:
                self._ledger.count_abandoned(len(rows))
                self.raise_if_over()
            self._ledger.add(rows)
        self._ledger.wake_others()

    def wait(self, future: Future[list[Outcome]]) -> list[Outcome]:
        """Block until a call is answered, or all threads have ended."""
        while True:
            try:
                return future.result(timeout=1.0)
            except FutureTimeout:
                if future.done():
                    continue
                if not any(thread.is_alive for thread in self._threads):
                    self.raise_if_over()
                    raise EngineDiedError("the engine's thread ended with rows unanswered.") from None

    def abandon(self, call: Call) -> None:
        """Drop the rows of a call that nobody waits for any more."""
        self._ledger.drop(call)

    def forget_answers(self) -> None:
        """Forget all answers: later rows are computed, even if an equal row was computed before."""
        self._ledger.forget_answers()

    def hold(self) -> None:
        """Send no more rows to any vLLM, for good. Those inside are answered."""
        for thread in self._threads:
            thread.hold()

    def set_limits(self, stall_timeout: float, max_restarts: int) -> None:
        """Change these two settings from now on, as ``EngineConfig`` has them."""
        for thread in self._threads:
            thread.set_limits(stall_timeout, max_restarts)

    def snapshot(self) -> EngineStats:
        """Return the current counters."""
        stats = self._ledger.snapshot()
        for thread in self._threads:
            thread.count(stats)
        return stats

    def figures(self) -> list[EngineFigures]:
        """Return what each vLLM does and has done, in the order in which they are started."""
        return [thread.figures() for thread in self._threads]

    def stop(self, *, grace: float) -> None:
        """End all threads and processes, and wait for them; ``grace`` as in ``Core.shutdown``."""
        self._end(EngineClosedError("the engine was closed with rows unanswered."))
        for thread in self._threads:  # all of them at once: Python may be ending, and then no thread can be started
            thread.begin_stop(grace=grace)
        for thread in self._threads:
            thread.stop(grace=grace)

    def _ended(self, thread: EngineThread, error: DaftVLLMError) -> None:
        """A vLLM has ended for good: the others go on with its rows, if there are any."""
        if self._over is None and self._ledger.close(thread.lane):
            left = sum(not one.is_over for one in self._threads)
            logger.warning("%s The other engines, %d, go on with its rows.", error, left)
        else:
            self._end(error)

    def _end(self, error: DaftVLLMError) -> None:
        with self._lock:
            self._over = self._over or error
        self._ledger.fail_all(self._over)
