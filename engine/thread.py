"""The thread that owns vLLM: its event loop, the rows that wait, the rows inside vLLM."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace

from daft_vllm.engine.config import EngineConfig
from daft_vllm.engine.core import Core, StepWatch
from daft_vllm.engine.duplicates import Duplicates
from daft_vllm.engine.queue import PrefixQueue
from daft_vllm.engine.request import Outcome
from daft_vllm.engine.rows import Call, Row
from daft_vllm.engine.stats import EngineStats
from daft_vllm.errors import DaftVLLMError, EngineClosedError, EngineDiedError

WATCH_SECONDS = 0.5
"""How often the engine looks whether vLLM is alive and makes progress."""


STEPS_AHEAD = 2
"""Steps of vLLM that the prompts sent to it fill before it has begun them. One is the next step, which may be under way
when this is looked at; the other is the one after it. More only fixes the order of rows too early for those to come."""


class EngineThread:
    """Drives vLLM from one thread: admits waiting rows as room appears, and watches that vLLM lives.

    Fields are touched by that thread only, except where a method says otherwise. It is a daemon thread: the
    interpreter must be able to reach ``atexit``, which stops it.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self._loop = asyncio.new_event_loop()
        self._ready: Future[Core] = Future()
        self._core: Core | None = None
        self._over: DaftVLLMError | None = None
        self._queue = PrefixQueue(1, 1)  # until the model is loaded
        self._duplicates = Duplicates()
        self._in_flight: dict[str, Row] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ids = itertools.count()
        self._max_in_flight = 1
        self._max_waiting_tokens = 1
        self._sent: deque[int] = deque()  # new tokens of the rows sent last: of all that may wait in vLLM, and others
        self._sent_tokens = 0
        self._grace = 0.0  # a dead engine gets none
        self._stats = EngineStats()
        self._stats_lock = threading.Lock()
        self._busy_since: float | None = None
        self._opened = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="daft-vllm-engine", daemon=True)

    # Called from any thread.

    def start(self) -> None:
        """Start the thread and block until the model is loaded."""
        self._thread.start()
        self._ready.result()

    @property
    def core(self) -> Core:
        """The running vLLM."""
        return self._ready.result(timeout=0)

    @property
    def is_over(self) -> bool:
        """Whether this engine died or was closed."""
        return self._over is not None

    def raise_if_over(self) -> None:
        """Raise a fresh copy of what ended this engine, if something did."""
        if self._over is not None:
            raise type(self._over)(*self._over.args)

    def submit(self, call: Call, rows: list[Row], finished: list[tuple[int, Outcome]]) -> None:
        """Hand a call's rows to the thread. ``finished`` are those that need no generation."""
        with self._stats_lock:
            self._stats.rows += len(rows) + len(finished)
            self._stats.pending += len(rows)
            for _, outcome in finished:
                self._stats.finish(outcome)
        for index, outcome in finished:
            call.put(index, outcome)
        if rows:
            try:
                self._call_soon(self._enqueue, rows)
            except DaftVLLMError:
                self._count_abandoned(waiting=len(rows))
                raise

    def wait(self, future: Future[list[Outcome]]) -> list[Outcome]:
        """Block until a call is answered; never longer than the engine's thread lives."""
        while True:
            try:
                return future.result(timeout=1.0)
            except FutureTimeout:
                if future.done():
                    continue
                if not self._thread.is_alive():
                    self.raise_if_over()
                    raise EngineDiedError("the engine's thread ended with rows unanswered.") from None

    def abandon(self, call: Call) -> None:
        """Drop the rows of a call that nobody waits for any more."""
        with contextlib.suppress(DaftVLLMError):
            self._call_soon(self._drop, call)

    def forget_answers(self) -> None:
        """Compute anew what was computed before, for rows that come from now on."""
        with contextlib.suppress(DaftVLLMError):
            self._call_soon(self._duplicates.forget)

    def snapshot(self) -> EngineStats:
        """Return the counters as they stand."""
        now = time.monotonic()
        with self._stats_lock:
            stats = replace(self._stats)
            busy_since = self._busy_since
        if busy_since is not None:
            stats.busy_seconds += now - busy_since
        stats.idle_seconds = now - self._opened - stats.busy_seconds
        stats.optimal_tokens = self._queue.optimal_tokens
        if self._core is not None:
            stats.media, stats.media_seconds = self._core.media.loaded, self._core.media.seconds
        watch = self._core.watch if self._core is not None else StepWatch()
        stats.steps, stats.preemptions = watch.steps, watch.preemptions
        stats.running_sum, stats.peak_running = watch.running_sum, watch.running_peak
        return stats

    def stop(self, *, grace: float) -> None:
        """End the thread and vLLM's processes, and wait for both; ``grace`` as in ``Core.shutdown``."""
        self._grace = grace
        if self._thread.is_alive():
            with contextlib.suppress(DaftVLLMError):
                self._call_soon(self._end, EngineClosedError("the engine was closed with rows unanswered."))
            self._thread.join(timeout=grace + 5.0)
        if self._core is not None:
            self._core.kill()
        self._over = self._over or EngineClosedError("the engine is closed.")

    def _count_abandoned(self, *, waiting: int, running: int = 0) -> None:
        with self._stats_lock:
            self._stats.pending -= waiting
            self._stats.in_flight -= running
            self._stats.abandoned += waiting + running

    def _call_soon(self, function: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # the loop is closed
            self.raise_if_over()
            raise EngineClosedError("the engine is closed.") from None

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
            self._fail_all(self._over or EngineClosedError("the engine is closed."))
            self._end_tasks()
            self._loop.close()

    def _end_tasks(self) -> None:
        """End the loop's tasks, vLLM's among them: asyncio complains at exit of those that it finds pending."""
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self._loop.run_until_complete(asyncio.wait(tasks, timeout=1.0))

    async def _main(self) -> None:
        self._stop = asyncio.Event()
        self._core = core = Core.start(self.config)
        self._queue = PrefixQueue(core.block_size, core.max_num_seqs)
        self._max_in_flight = math.ceil(core.max_num_seqs * self.config.queue_factor)
        self._max_waiting_tokens = core.max_num_batched_tokens * STEPS_AHEAD
        core.watch.on_step = self._admit
        try:
            await core.load_adapters(self.config.stall_timeout)
            self._opened = time.monotonic()
            self._ready.set_result(core)
            while not self._stop.is_set():
                self._check_alive(core)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), WATCH_SECONDS)
        finally:
            for task in self._tasks.values():
                task.cancel()
            core.shutdown(self._grace)

    def _enqueue(self, rows: list[Row]) -> None:
        if self._over is not None:
            self._count_abandoned(waiting=len(rows))
            rows[0].call.fail(self._over)
            return
        new, known = self._duplicates.first_of_their_kind(rows)
        self._queue.push(new)
        for row, outcome in known:
            self._finish(row, outcome, duplicate=True)
        self._admit()

    def _admit(self) -> None:
        """Move waiting rows into vLLM as long as there is room."""
        if self._over is not None or self._core is None:
            return
        moved, waited, now = 0, 0.0, time.monotonic()
        if len(self._queue) and not self._in_flight:
            self._core.watch.last_step = now  # an idle engine takes no steps: start the watch here
        while len(self._queue) and self._has_room(self._core):
            row = self._queue.pop()
            self._sent.append(row.new_tokens)
            self._sent_tokens += row.new_tokens
            request_id = str(next(self._ids))
            self._in_flight[request_id] = row
            self._tasks[request_id] = self._loop.create_task(self._generate(request_id, row))
            row.waited = now - row.call.since
            waited += row.waited
            moved += 1
        with self._stats_lock:
            self._stats.pending -= moved
            self._stats.in_flight += moved
            self._stats.queue_seconds += waited
            if self._busy_since is None and self._in_flight:
                self._busy_since = now
            elif self._busy_since is not None and not self._in_flight:
                self._stats.busy_seconds += now - self._busy_since
                self._busy_since = None

    def _has_room(self, core: Core) -> bool:
        """Whether vLLM may run out of rows before it can be given more.

        It may not while the rows that it has not begun fill its next steps. vLLM begins rows in the order in which they
        were sent: those it has not begun are the last ones.
        """
        waiting = max(0, len(self._in_flight) - core.watch.running)  # vLLM may still run rows that were given up
        while len(self._sent) > waiting:
            self._sent_tokens -= self._sent.popleft()
        return len(self._in_flight) < self._max_in_flight and self._sent_tokens < self._max_waiting_tokens

    async def _generate(self, request_id: str, row: Row) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError

        assert self._core is not None
        try:
            outcome = await self._core.generate(request_id, row)
        except EngineDeadError:
            self._on_death("vLLM's core process died")
            return
        finally:
            self._tasks.pop(request_id, None)
        if row.items and row.leads:  # the queue counted its media as the one token that stood for each
            self._queue.optimal_tokens += row.prompt_tokens - row.size
        if self._in_flight.pop(request_id, None) is None:
            return  # dropped meanwhile
        with self._stats_lock:
            self._stats.in_flight -= 1
            self._stats.pending += 1
        twins = self._duplicates.finish(row, outcome)
        self._finish(row, outcome)
        for twin in twins:
            self._finish(twin, outcome, duplicate=True)
        self._admit()

    def _finish(self, row: Row, outcome: Outcome, *, duplicate: bool = False) -> None:
        """Give a pending row its outcome."""
        if duplicate:  # nothing was computed for it
            waited = time.monotonic() - row.call.since
            outcome = outcome._replace(cached_tokens=outcome.prompt_tokens, queue_seconds=waited)
        with self._stats_lock:
            self._stats.pending -= 1
            self._stats.finish(outcome, duplicate=duplicate)
        row.call.put(row.index, outcome)

    def _check_alive(self, core: Core) -> None:
        if core.is_dead():
            self._on_death("vLLM's core process died")
        elif core.media.rows and core.media.rows == len(self._in_flight):
            core.watch.last_step = time.monotonic()  # all wait for their media
        elif self._in_flight and time.monotonic() - core.watch.last_step > self.config.stall_timeout:
            core.kill()
            self._on_death(f"vLLM made no step for {self.config.stall_timeout:g} seconds")

    def _on_death(self, what: str) -> None:
        """Answer every waiting call with the engine's death. Rows and calls are all known here: replay starts here."""
        if self._over is None and not self._stop.is_set():
            lost = len(self._unanswered())
            self._end(
                EngineDiedError(
                    f"{what} with {lost} rows unanswered. Out of memory is the usual cause: lower max_model_len, "
                    "max_num_seqs or gpu_memory_utilization in engine_args; the log above, from vLLM, may say more."
                )
            )

    def _end(self, error: DaftVLLMError) -> None:
        self._over = self._over or error
        self._fail_all(error)
        self._stop.set()

    def _unanswered(self) -> list[Row]:
        """Return every row that has no outcome yet."""
        computed = [*self._in_flight.values(), *self._queue]
        return computed + [twin for row in computed for twin in row.twins or ()]

    def _fail_all(self, error: DaftVLLMError) -> None:
        lost = self._unanswered()
        self._count_abandoned(waiting=len(lost) - len(self._in_flight), running=len(self._in_flight))
        self._in_flight.clear()
        self._queue.remove(lambda row: True)
        self._duplicates = Duplicates()
        for row in lost:
            row.twins = None
            row.call.fail(error)

    def _drop(self, call: Call) -> None:
        """Take out the rows of ``call``; a row that others wait for is computed in one of their names."""

        def unwanted(row: Row) -> bool:
            return row.call is call

        waiting = self._queue.remove(unwanted)
        running = {request_id: row for request_id, row in self._in_flight.items() if unwanted(row)}
        twins = [
            twin for row in self._unanswered() if not unwanted(row) for twin in self._duplicates.prune(row, unwanted)
        ]
        for request_id in running:
            del self._in_flight[request_id]
            self._tasks[request_id].cancel()  # vLLM aborts the request when its task is cancelled
        for row in [*waiting, *running.values()]:
            heir, gone = self._duplicates.drop(row, unwanted)
            twins += gone
            if heir is not None:
                self._queue.push([heir])
        self._count_abandoned(waiting=len(waiting) + len(twins), running=len(running))
        self._admit()
