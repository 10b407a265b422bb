"""The thread that owns vLLM: it runs the event loop, and starts and ends vLLM's processes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, wait
from dataclasses import replace
from typing import Any

from daft_vllm.engine.process.core import Core
from daft_vllm.engine.process.main_module import refuse_process
from daft_vllm.engine.process.step_watch import StepWatch
from daft_vllm.engine.requests.stats import EngineFigures, EngineStats, State
from daft_vllm.engine.scheduling.ledger import Ledger
from daft_vllm.engine.scheduling.replay import PROGRESS, RestartBudget
from daft_vllm.engine.scheduling.row import Row
from daft_vllm.engine.setup.config import EngineConfig
from daft_vllm.engine.setup.devices.driver import MASK, ORDER
from daft_vllm.engine.setup.environment import start_with
from daft_vllm.engine.setup.guardian import NewProcesses, raise_if_python_ends
from daft_vllm.errors import DaftVLLMError, EngineClosedError, EngineDiedError, EngineStartError, ModelError

logger = logging.getLogger("daft_vllm")

WATCH_SECONDS = 0.5
"""Seconds between two checks that vLLM is alive and makes progress."""
STOP_SECONDS = 5.0
"""How long the thread may take to end, in addition to the time that vLLM gets (``grace``)."""
RESTART_SECONDS = 5.0
"""Pause after a failed start: the GPU memory of a killed process is free a moment after the process is gone."""
STEPS_AHEAD = 2
"""How many steps of vLLM may be filled by prompts that it has not begun. The first is the next step, which may already
run when this is checked. The second is the step after it. More only fixes the order of rows too early, before later
rows arrive."""


class EngineThread:
    """Drives one vLLM from one thread: sends rows when there is room, and starts it again after a death or a stall.

    Only that thread uses the fields, except where a method says otherwise. It is a daemon thread: the interpreter must
    be able to reach ``atexit``, which stops the thread.

    Args:
        config: how to start vLLM.
        ledger: the account of the rows, which other threads may share.
        variables: environment variables of this vLLM, such as the mask of its GPUs.
        on_end: called once vLLM has ended for good, with the reason.
    """

    def __init__(
        self,
        config: EngineConfig,
        ledger: Ledger,
        variables: Mapping[str, str],
        on_end: Callable[[EngineThread, DaftVLLMError], None],
    ) -> None:
        self.config = config
        self._variables = variables
        self._on_end = on_end
        self._ledger = ledger
        self.lane = lane = ledger.new_lane()
        lane.wake = lambda: self._soon(self._look)
        lane.cancel = lambda ids: self._soon(self._cancel_inside, ids)
        self._loop = asyncio.new_event_loop()
        self._ready: Future[Core] = Future()
        self._is_first = True
        self._woken = asyncio.Event()
        self._core: Core | None = None  # the latest vLLM
        self._takes_rows = False
        self._held = False
        self._starting: NewProcesses | None = None  # while vLLM starts
        self._watch = StepWatch()
        self._watch.on_step = self._admit
        self._over: DaftVLLMError | None = None
        self._budget = RestartBudget(0, 1)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ids = itertools.count()
        self._max_in_flight = 1
        self._max_waiting_tokens = 1
        self._sent: deque[int] = deque()  # new tokens of the rows sent last: all rows not begun, and more
        self._sent_tokens = 0
        self._grace = 0.0  # stays 0 for a vLLM that died
        self._thread = threading.Thread(target=self._run, name="daft-vllm-engine", daemon=True)

    # Called from any thread.

    def start(self) -> None:
        """Start the thread and block until the model is loaded."""
        refuse_process()
        raise_if_python_ends()
        self._thread.start()
        while not wait([self._ready], timeout=WATCH_SECONDS).done:
            raise_if_python_ends()  # it would wait for this thread until the model is loaded
        try:
            self._ready.result()
        except DaftVLLMError as e:  # the message says it: the thread's frames and vLLM's are in the log
            raise e.with_traceback(None) from e.__cause__

    def start_later(self) -> None:
        """Start the thread, which loads the model when it is its turn. It doesn't block."""
        self._is_first = False
        self._thread.start()

    @property
    def core(self) -> Core:
        """The first vLLM. After a restart, a later vLLM differs from it only in its processes."""
        return self._ready.result(timeout=0)

    @property
    def process_ids(self) -> list[int]:
        """Ids of the processes of the latest vLLM."""
        return [process.pid for process in self._core.processes] if self._core is not None else []

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def is_over(self) -> bool:
        """Whether this engine died or was closed."""
        return self._over is not None

    def count(self, stats: EngineStats) -> None:
        """Add what this vLLM has counted. Callable from any thread."""
        if self._core is not None:
            stats.media += self._core.media.loaded
            stats.media_seconds += self._core.media.seconds
        self._watch.count(stats)

    def figures(self) -> EngineFigures:
        """Return what this vLLM does and has done. Callable from any thread."""
        state: State = "ready" if self._takes_rows else "died" if self._ready.done() else "loading"
        return self._watch.figures("ended" if self.is_over else state, self._ledger.snapshot_of(self.lane))

    def hold(self) -> None:
        """Send no more rows to vLLM, for good. Those inside it are answered. Callable from any thread."""
        self._held = True

    def set_limits(self, stall_timeout: float, max_restarts: int) -> None:
        """Change these two settings from now on, as ``EngineConfig`` has them. Callable from any thread."""
        self._soon(self._set_limits, stall_timeout, max_restarts)

    def begin_stop(self, *, grace: float) -> None:
        """Let the thread and vLLM's processes end; ``grace`` as in ``Core.shutdown``."""
        self._grace = grace
        closed = EngineClosedError("the engine was closed with rows unanswered.")
        self._over = self._over or closed  # the thread may be restarting vLLM, and reads this only afterwards
        self._soon(self._end, closed)

    def stop(self, *, grace: float) -> None:
        """Wait until the thread and vLLM's processes have ended, after ``begin_stop`` with the same ``grace``."""
        if self._thread.is_alive():
            # If a start is under way, it may replace a killed process by a new one: kill until the thread has ended.
            deadline = time.monotonic() + grace + STOP_SECONDS
            while self._thread.is_alive() and time.monotonic() < deadline:
                if (starting := self._starting) is not None:
                    starting.kill()
                self._thread.join(timeout=0.2)
        if self._core is not None:
            self._core.kill()

    def _soon(self, function: Callable[..., None], *args: object) -> None:
        """Call a function in the engine's thread. Does nothing once the thread has ended. Callable from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function, *args)

    # Called from the engine's thread.

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._main())
        except BaseException as e:
            self._over = self._over or EngineDiedError(f"the engine's thread failed: {type(e).__name__}: {e}")
            if not self._ready.done():
                self._ready.set_exception(e)
        finally:
            self._over = self._over or EngineClosedError("the engine is closed.")
            self._on_end(self, self._over)
            # Also vLLM's own tasks: at exit asyncio complains about tasks that are still pending.
            self._loop.run_until_complete(_cancel(asyncio.all_tasks(self._loop)))
            self._loop.close()

    async def _main(self) -> None:
        gpus = {name: value for name, value in os.environ.items() if name in (MASK, ORDER)} | dict(self._variables)
        if self._is_first:
            first = await self._start(self.config)
        else:
            with self._turn(self._variables):
                if self._over is not None:  # closed while this thread waited for the start of another engine
                    return
                first = await self._start(self.config)
        self._open(first)
        core: Core | None = first
        while core is not None:
            await self._serve(core)
            while self._over is None and not self._ledger.unanswered():  # no row needs vLLM
                self._woken.clear()
                await self._woken.wait()
            core = await self._start_again(core, gpus)

    def _turn(self, variables: Mapping[str, str]) -> contextlib.AbstractContextManager[None]:
        """Wait until no other thread starts an engine, and let this thread do so.

        Others go on while this one loads its model, unless they may share a GPU: vLLM measures how much of the GPU's
        memory is free, and fails if it changes meanwhile.
        """
        return start_with(variables, beside_others=not 0 < self.config.gpus < 1)

    async def _start(self, config: EngineConfig) -> Core:
        """Start vLLM, load its adapters, and return it."""
        self._starting = starting = NewProcesses()
        try:
            self._core = core = Core.start(config, self._watch, starting)
        finally:
            self._starting = None
        try:
            await core.load_adapters(self.config.stall_timeout)
        except BaseException:
            core.shutdown(0.0)
            raise
        return core

    def _open(self, core: Core) -> None:
        """Start to take rows, with limits that suit this vLLM and those that replace it."""
        self._ledger.open(self.lane, core.block_size, core.max_num_seqs)
        self._budget = RestartBudget(self.config.max_restarts, PROGRESS * core.max_num_seqs)
        self._max_in_flight = math.ceil(core.max_num_seqs * self.config.queue_factor)
        self._max_waiting_tokens = core.max_num_batched_tokens * STEPS_AHEAD
        self._ready.set_result(core)

    async def _serve(self, core: Core) -> None:
        """Let vLLM answer rows until it dies or the engine ends. Then end all its processes."""
        try:
            self._takes_rows = self._over is None
            self._woken.clear()
            self._watch.running = 0
            if self._takes_rows:
                self._ledger.reopen(self.lane)
            self._admit()
            while self._takes_rows:
                self._check_alive(core)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._woken.wait(), WATCH_SECONDS)
        finally:
            # Before the next vLLM starts: the end of these tasks says nothing about that one.
            await _cancel(list(self._tasks.values()))
            self._tasks.clear()
            core.shutdown(self._grace)

    async def _start_again(self, before: Core, gpus: Mapping[str, str]) -> Core | None:
        """Start another vLLM, on the same GPUs and with the same context. Return None if the engine is over."""
        config = replace(self.config, engine_args={**self.config.engine_args, "max_model_len": before.max_model_len})
        while self._over is None:
            try:
                with self._turn(gpus):
                    if self._over is not None:  # closed while this thread waited for the start of another engine
                        return None
                    core = await self._start(config)
            except (EngineStartError, ModelError) as e:
                if self._over is not None:
                    return None
                if self._budget.spend(self._ledger.done):
                    logger.warning("vLLM did not start again. The next try follows: %s", e)
                    await asyncio.sleep(RESTART_SECONDS)
                else:
                    self._end(EngineDiedError(f"vLLM died, and could not be started again: {e}"))
            else:
                core.media.loaded += before.media.loaded
                core.media.seconds += before.media.seconds
                self._watch.restarts += 1
                logger.warning("vLLM is running again.")
                return core
        return None

    def _set_limits(self, stall_timeout: float, max_restarts: int) -> None:
        self.config = replace(self.config, stall_timeout=stall_timeout, max_restarts=max_restarts)
        self._budget.allow(max_restarts)

    def _look(self) -> None:
        """Look for rows: there are new ones, or others have left some."""
        if not self._takes_rows:
            self._woken.set()  # if vLLM died while idle, it is started again now
        self._admit()

    def _admit(self) -> None:
        """Send waiting rows to vLLM as long as there is room."""
        if not self._takes_rows or self._held:
            return
        inside = self.lane.in_flight
        if not inside:
            self._watch.last_step = time.monotonic()  # an idle engine makes no steps: stall_timeout begins here
        rows: list[Row] = []
        while (row := self._ledger.next_row(self.lane, self._has_room)) is not None:
            self._sent.append(row.new_tokens)
            self._sent_tokens += row.new_tokens
            request_id = str(next(self._ids))
            inside[request_id] = row
            self._tasks[request_id] = self._loop.create_task(self._generate(request_id, row))
            rows.append(row)
        self._ledger.sent(self.lane, rows)

    def _has_room(self) -> bool:
        """Whether to send one more row, so that vLLM does not run out of rows before it can get the next ones.

        No more rows are sent while those waiting already fill the next steps. vLLM begins rows in the order in which
        they were sent, so the rows that it has not begun are the last ones sent.
        """
        in_flight = len(self.lane.in_flight)
        waiting = max(0, in_flight - self._watch.running)  # vLLM may still run rows that were dropped
        while len(self._sent) > waiting:
            self._sent_tokens -= self._sent.popleft()
        return in_flight < self._max_in_flight and self._sent_tokens < self._max_waiting_tokens

    async def _generate(self, request_id: str, row: Row) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError

        core = self._core
        assert core is not None
        try:
            outcome = await core.generate(request_id, row)
        except EngineDeadError:
            self._on_death(core, "vLLM's core process died")
            return
        finally:
            self._tasks.pop(request_id, None)
        self._ledger.answered(self.lane, request_id, outcome)
        self._admit()

    def _check_alive(self, core: Core) -> None:
        core.log.trim()
        self._ledger.end_late(self.lane, self._watch.last_step)
        in_flight = len(self.lane.in_flight)
        if core.is_dead():
            self._on_death(core, "vLLM's core process died")
        elif core.media.rows and core.media.rows == in_flight:
            self._watch.last_step = time.monotonic()  # all rows wait for their media
        elif in_flight and time.monotonic() - self._watch.last_step > self.config.stall_timeout:
            core.kill()
            self._on_death(core, f"vLLM made no step for {self.config.stall_timeout:g} seconds")

    def _on_death(self, core: Core, what: str) -> None:
        """Take back the rows that were inside vLLM, for the next vLLM. If it may not start again, end the engine."""
        if core is not self._core or not self._takes_rows:
            return
        self._watch.deaths += 1
        lost = len(self._ledger.unanswered())
        if not self._budget.spend(self._ledger.done):
            again = f", after {self.config.max_restarts} restarts in a row" if self.config.max_restarts else ""
            self._end(EngineDiedError(f"{what} with {lost} rows unanswered{again}. {core.death()}"))
            return
        self._takes_rows = False
        self._sent.clear()
        self._sent_tokens = 0
        inside = len(self.lane.in_flight)
        self._ledger.requeue_in_flight(self.lane, what, still_loading=core.media.rows > 0)
        if not self._ledger.unanswered():
            then = " when it is needed"
        else:
            limit = self.lane.replay.limit
            then = f", and gets back the rows that were inside it, at most {limit} at once" if limit else ""
        logger.warning(
            "%s with %d rows unanswered, %d of them inside it. %s vLLM is started again%s.",
            *(what, lost, inside, core.death(), then),
        )
        self._woken.set()

    def _end(self, error: DaftVLLMError) -> None:
        self._takes_rows = False
        self._over = self._over or error
        self._on_end(self, self._over)
        self._woken.set()

    def _cancel_inside(self, request_ids: Iterable[str]) -> None:
        """Take rows out of vLLM that need no answer any more."""
        for request_id in request_ids:
            if (task := self._tasks.pop(request_id, None)) is not None:
                task.cancel()  # vLLM aborts the request when its task is cancelled
        self._admit()


async def _cancel(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait up to a second until they end."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=1.0)
