"""``OfflineEngine``: requests in, outcomes out, around one vLLM engine that is driven from one thread."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import itertools
import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace
from typing import NamedTuple

from daft_vllm.engine.config import EngineConfig
from daft_vllm.engine.core import GRACE_SECONDS, Core, Prepared, StepWatch
from daft_vllm.engine.render import RequestRenderer
from daft_vllm.engine.request import Outcome, Request
from daft_vllm.engine.stats import EngineStats
from daft_vllm.errors import DaftVLLMError, EngineClosedError, EngineDiedError, EngineError

WATCH_SECONDS = 0.5
"""How often the engine looks whether vLLM is alive and makes progress."""


class _Call:
    """One caller's rows: fills up from the engine's thread, and wakes the caller when full or failed."""

    def __init__(self, size: int) -> None:
        self.outcomes: list[Outcome | None] = [None] * size
        self.missing = size
        self.future: Future[None] = Future()

    def put(self, index: int, outcome: Outcome) -> None:
        self.outcomes[index] = outcome
        self.missing -= 1
        if self.missing == 0 and not self.future.done():
            self.future.set_result(None)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class _Row(NamedTuple):
    call: _Call
    position: int
    prepared: Prepared


class OfflineEngine:
    """One vLLM engine for any number of concurrent callers.

    Opened on construction: the model is loaded before ``__init__`` returns. vLLM's core runs in a child process; one
    thread of this process drives it, admits waiting rows as room appears, and watches that it lives.

    Args:
        config: how to start the engine.
        check_chat_template: refuse a model without a chat template right after it is loaded.

    Raises:
        MissingPackageError: vLLM is not installed.
        OptionError: vLLM refuses an engine argument.
        ModelError: the model has no chat template.
        EngineStartError: vLLM did not start.
    """

    def __init__(self, config: EngineConfig, *, check_chat_template: bool = True) -> None:
        self.config = config
        self._state = _EngineThread(config)
        # weakref.finalize's own exit hook would come after multiprocessing's, which joins vLLM's core: for ever.
        # No grace: Daft waits 5 seconds for a UDF process to end, vLLM alone may take longer to end in good order.
        self._finalizer = weakref.finalize(self, self._state.stop, grace=0.0)
        self._finalizer.atexit = False
        try:
            self._state.start()
            # After vLLM imported multiprocessing: exit functions run last in, first out.
            atexit.register(self._finalizer)
            core = self._state.core
            self._renderer = RequestRenderer(config, core.llm.renderer, core.max_model_len)
            if check_chat_template:
                self._renderer.check_chat_template()
        except BaseException:
            self.close()
            raise

    def run(self, requests: Sequence[Request]) -> list[Outcome]:
        """Answer ``requests``: one outcome each, in their order. Blocks; may be called from many threads at once.

        A row's failure is its outcome. Exceptions concern the engine as a whole.

        Raises:
            EngineDiedError: vLLM died, or stalled for ``stall_timeout`` seconds, before every row was answered.
            EngineClosedError: the engine is closed.
        """
        self._state.raise_if_over()
        call = _Call(len(requests))
        rows: list[_Row] = []
        finished: list[tuple[int, Outcome]] = []
        for index, prepared in enumerate(self._renderer.prepare(requests)):
            if isinstance(prepared, Outcome):
                finished.append((index, prepared))
            else:
                rows.append(_Row(call, index, prepared))
        self._state.submit(call, rows, finished)
        try:
            self._state.wait(call)
        except BaseException:  # an interrupt among them: nobody waits for these rows any more
            self._state.abandon(call)
            raise
        outcomes = [outcome for outcome in call.outcomes if outcome is not None]
        if len(outcomes) != len(requests):
            raise EngineError(f"{len(requests)} rows went in and {len(outcomes)} came out: a bug, please report it.")
        return outcomes

    def stats(self) -> EngineStats:
        """Return the counters as they stand. Rows in equal rows pending, in flight, done and abandoned."""
        return self._state.snapshot()

    @property
    def is_over(self) -> bool:
        """Whether this engine died or was closed: it answers no more."""
        return self._state.is_over

    @property
    def process_ids(self) -> list[int]:
        """Ids of vLLM's processes: the core and its workers."""
        return [process.pid for process in self._state.core.processes]

    @property
    def max_model_len(self) -> int:
        """The context of the model as it was loaded, in tokens."""
        return self._state.core.max_model_len

    def close(self) -> None:
        """Stop vLLM and leave no process behind; waiting calls raise ``EngineClosedError``. Safe to call twice."""
        atexit.unregister(self._finalizer)
        if self._finalizer.detach() is not None:
            self._state.stop(grace=GRACE_SECONDS)

    def __enter__(self) -> OfflineEngine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _EngineThread:
    """The thread that owns vLLM: its event loop, the rows that wait, the rows inside vLLM.

    Fields are touched by that thread only, except where a method says otherwise. It is a daemon thread: the
    interpreter must be able to reach ``atexit``, which stops it.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.watch = StepWatch()
        self._loop = asyncio.new_event_loop()
        self._ready: Future[Core] = Future()
        self._core: Core | None = None
        self._over: DaftVLLMError | None = None
        self._waiting: deque[_Row] = deque()
        self._in_flight: dict[str, _Row] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ids = itertools.count()
        self._max_in_flight = 1
        self._grace = 0.0  # a dead engine gets none
        self._stats = EngineStats()
        self._stats_lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="daft-vllm-engine", daemon=True)

    # Called from any thread.

    def start(self) -> None:
        """Start the thread and block until the model is loaded."""
        self._thread.start()
        self._ready.result()

    @property
    def core(self) -> Core:
        return self._ready.result(timeout=0)

    @property
    def is_over(self) -> bool:
        return self._over is not None

    def raise_if_over(self) -> None:
        """Raise a fresh copy of what ended this engine, if something did."""
        if self._over is not None:
            raise type(self._over)(*self._over.args)

    def submit(self, call: _Call, rows: list[_Row], finished: list[tuple[int, Outcome]]) -> None:
        """Hand a call's rows to the thread. ``finished`` are those that need no generation."""
        with self._stats_lock:
            self._stats.rows += len(rows) + len(finished)
            self._stats.pending += len(rows)
            for _, outcome in finished:
                self._stats.finish(outcome)
        if not rows and not finished:
            call.future.set_result(None)
        for index, outcome in finished:
            call.put(index, outcome)
        if rows:
            try:
                self._call_soon(self._enqueue, rows)
            except DaftVLLMError:
                with self._stats_lock:
                    self._stats.pending -= len(rows)
                    self._stats.abandoned += len(rows)
                raise

    def wait(self, call: _Call) -> None:
        """Block until the call is answered; never longer than the engine's thread lives."""
        while True:
            try:
                return call.future.result(timeout=1.0)
            except FutureTimeout:
                if call.future.done():
                    continue
                if not self._thread.is_alive():
                    self.raise_if_over()
                    raise EngineDiedError("the engine's thread ended with rows unanswered.") from None

    def abandon(self, call: _Call) -> None:
        """Drop the rows of a call that nobody waits for any more."""
        with contextlib.suppress(DaftVLLMError):
            self._call_soon(self._drop, call)

    def snapshot(self) -> EngineStats:
        with self._stats_lock:
            stats = replace(self._stats)
        watch = self._core.watch if self._core is not None else self.watch
        stats.steps, stats.preemptions, stats.peak_running = watch.steps, watch.preemptions, watch.running_peak
        stats.mean_running = round(watch.running_sum / watch.steps, 2) if watch.steps else 0.0
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

    def _call_soon(self, function: object, *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args)  # type: ignore[arg-type]
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
            self._loop.close()

    async def _main(self) -> None:
        self._stop = asyncio.Event()
        self._core = core = Core.start(self.config)
        self._max_in_flight = math.ceil(core.max_num_seqs * self.config.queue_factor)
        self._ready.set_result(core)
        try:
            while not self._stop.is_set():
                self._check_alive(core)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), WATCH_SECONDS)
        finally:
            for task in self._tasks.values():
                task.cancel()
            core.shutdown(self._grace)

    def _enqueue(self, rows: list[_Row]) -> None:
        if self._over is not None:
            with self._stats_lock:
                self._stats.pending -= len(rows)
                self._stats.abandoned += len(rows)
            rows[0].call.fail(self._over)
            return
        self._waiting.extend(rows)
        self._admit()

    def _admit(self) -> None:
        """Move waiting rows into vLLM as long as there is room."""
        if self._waiting and not self._in_flight and self._core is not None:
            self._core.watch.last_step = time.monotonic()  # an idle engine takes no steps: start the watch here
        moved = 0
        while self._waiting and len(self._in_flight) < self._max_in_flight and self._over is None:
            row = self._waiting.popleft()
            request_id = str(next(self._ids))
            self._in_flight[request_id] = row
            self._tasks[request_id] = self._loop.create_task(self._generate(request_id, row))
            moved += 1
        with self._stats_lock:
            self._stats.pending -= moved
            self._stats.in_flight += moved

    async def _generate(self, request_id: str, row: _Row) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError

        assert self._core is not None
        try:
            outcome = await self._core.generate(request_id, row.prepared)
        except EngineDeadError:
            self._on_death("vLLM's core process died")
            return
        finally:
            self._tasks.pop(request_id, None)
        if self._in_flight.pop(request_id, None) is None:
            return  # dropped meanwhile
        with self._stats_lock:
            self._stats.in_flight -= 1
            self._stats.finish(outcome)
        row.call.put(row.position, outcome)
        self._admit()

    def _check_alive(self, core: Core) -> None:
        if core.is_dead():
            self._on_death("vLLM's core process died")
        elif self._in_flight and time.monotonic() - core.watch.last_step > self.config.stall_timeout:
            core.kill()
            self._on_death(f"vLLM made no step for {self.config.stall_timeout:g} seconds")

    def _on_death(self, what: str) -> None:
        """Answer every waiting call with the engine's death. Rows and calls are all known here: replay starts here."""
        lost = len(self._in_flight) + len(self._waiting)
        if self._over is None and not self._stop.is_set():
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

    def _fail_all(self, error: DaftVLLMError) -> None:
        lost = [*self._in_flight.values(), *self._waiting]
        with self._stats_lock:
            self._stats.pending -= len(self._waiting)
            self._stats.in_flight -= len(self._in_flight)
            self._stats.abandoned += len(lost)
        self._in_flight.clear()
        self._waiting.clear()
        for row in lost:
            row.call.fail(error)

    def _drop(self, call: _Call) -> None:
        waiting = len(self._waiting)
        self._waiting = deque(row for row in self._waiting if row.call is not call)
        running = [request_id for request_id, row in self._in_flight.items() if row.call is call]
        for request_id in running:
            del self._in_flight[request_id]
            self._tasks[request_id].cancel()  # vLLM aborts the request when its task is cancelled
        dropped = waiting - len(self._waiting)
        with self._stats_lock:
            self._stats.pending -= dropped
            self._stats.in_flight -= len(running)
            self._stats.abandoned += dropped + len(running)
        self._admit()
