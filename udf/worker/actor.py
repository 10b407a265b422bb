"""The actor that Daft runs. It has a picklable spec, opens the engine on first use, and answers batch after batch."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import replace

from daft import Series
from daft.udf.metrics import increment_counter

from daft_vllm.engine import OfflineEngine, Outcome, Request
from daft_vllm.engine.requests.outcome import NOT_ASKED, QUOTES_THE_ROW, count_by_code
from daft_vllm.engine.setup.guardian import raise_if_python_ends
from daft_vllm.errors import (
    DaftVLLMError,
    EngineClosedError,
    EngineDiedError,
    EngineStartError,
    RowError,
    StoreError,
)
from daft_vllm.udf.answers.results import first_row, result_series, value_array, with_stop_named
from daft_vllm.udf.answers.return_format import Parsed, invalid, reason_of
from daft_vllm.udf.worker.batch import Asked, Batch, Steps, next_step
from daft_vllm.udf.worker.counters import QueryCounters
from daft_vllm.udf.worker.opening import opened_engine
from daft_vllm.udf.worker.requests import RequestMaker
from daft_vllm.udf.worker.spec import PromptSpec
from daft_vllm.udf.worker.stored import BatchRecord, StoredAnswers
from daft_vllm.wording import brief

logger = logging.getLogger("daft_vllm")


class PromptActor:
    """Answers batches of prompts with this process's engine.

    The same class runs in a process of its own, in a Ray actor, and in the driver. Several threads may call it at once.
    """

    def __init__(self, spec: PromptSpec) -> None:
        self._spec = spec
        self._limits = spec.options.limits
        self._requests = RequestMaker(spec, lambda: self._opened().takes("image"))
        self._lock = threading.Lock()
        self._engine: OfflineEngine | None = None
        self._counters = QueryCounters(
            spec.engine.model, lambda: self._engine, spec.options.progress_folder, spec.board
        )
        self._stored: StoredAnswers | None = None
        self._failure: DaftVLLMError | None = None
        self._in_flight: set[Future[list[Outcome]]] = set()
        self._batches: set[object] = set()  # those under way in the driver

    def answer(self, *columns: Series) -> Series:
        """Answer one batch. The result is a series of the spec's type, as long as the columns.

        Args:
            columns: the spec's ``parts`` and ``turns``; its ``row_options`` (null: the option's default); then the
                system messages, the adapters, the names of the formats, and the rows' own names, each only if rows have
                their own.
        """
        steps = self._steps(columns)
        try:
            with self._named_failure():
                step = next_step(steps)
                while isinstance(step, Asked):
                    step = next_step(steps, self._submit(step).result())
                return step
        except DaftVLLMError as e:
            raise _without_frames(e) from e.__cause__

    async def answer_async(self, *columns: Series) -> Series:
        """Do the same as ``answer``. Rendering and parsing run in other threads than the event loop's.

        If the query is cancelled, its rows are cancelled too.
        """
        raise_if_python_ends()
        steps = self._steps(columns)
        batch = object()
        self._batches.add(batch)
        try:
            with self._named_failure():
                step = await asyncio.to_thread(next_step, steps)
                while isinstance(step, Asked):
                    future = await asyncio.to_thread(self._submit, step)
                    answers = await asyncio.wrap_future(future)
                    step = await asyncio.to_thread(next_step, steps, answers)
                return step
        except DaftVLLMError as e:
            self._stored = None  # if the query is run again, it looks at the store anew
            raise _without_frames(e) from e.__cause__
        except asyncio.CancelledError:
            self._stored = None
            raise
        finally:
            self._batches.discard(batch)
            if not self._batches:  # Daft runs the expression's next query in the driver with the same actor
                self._failure = None

    @contextlib.contextmanager
    def _named_failure(self) -> Iterator[None]:
        """If this query's rows are cancelled inside because another batch failed, raise that batch's error."""
        try:
            yield
        except (CancelledError, asyncio.CancelledError):
            self._raise_failure()
            raise

    def _steps(self, columns: Sequence[Series]) -> Steps:
        """Answer a batch: yield requests, receive their outcomes, and return the column.

        If there are retries, each yields requests once more.
        """
        batch = self._requests.batch_of(columns)
        record = self._record_of(batch, columns)
        requests = dict(batch.requests)
        first = requests if record is None else record.to_ask
        answers = yield from self._ask(first, record)
        outcomes = {**batch.refused, **(record.known if record is not None else {}), **answers}
        requests |= first
        parsed = {i: self._parsed(batch, i, outcomes[i]) for i in range(batch.rows)}
        failing = list(requests)
        for attempt in range(1, self._spec.options.retries + 1):
            failing = [i for i in failing if _may_be_retried(parsed[i])]
            due = [i for i in failing if record is None or record.is_due(i, attempt)]
            again = self._retried_requests({i: requests[i] for i in due}, outcomes, attempt)
            answers = yield from self._ask(again, record)
            outcomes |= answers
            parsed |= {i: self._parsed(batch, i, outcome) for i, outcome in answers.items()}
        if record is not None:
            for i in batch.requests:
                chosen = record.chosen(
                    i, outcomes[i], parsed[i].error, lambda i, one: self._parsed(batch, i, one).error
                )
                if chosen is not outcomes[i]:
                    outcomes[i], parsed[i] = chosen, self._parsed(batch, i, chosen)
            self._flush(record)
        return self._result(batch, outcomes, parsed)

    def _record_of(self, batch: Batch, columns: Sequence[Series]) -> BatchRecord | None:
        """Return what the query's store knows of a batch. None: there is no store."""
        if self._spec.store is None:
            return None
        with self._lock:
            self._stored = stored = self._stored or StoredAnswers(self._spec.store)
        self._counters.begin()
        record = BatchRecord(stored, batch.requests, self._spec.options.store_retry)
        record.note_unasked(batch, lambda i: [one.slice(i, i + 1).to_pylist() for one in columns])
        self._counters.add(unsent=len(record.known) - record.stored, stored=record.stored)
        return record

    def _ask(
        self, requests: Mapping[int, Request], record: BatchRecord | None
    ) -> Generator[Asked, list[Outcome], dict[int, Outcome]]:
        """Return the outcomes of requests, by row number. With a store they are stored first."""
        if record is None:
            return dict(zip(requests, (yield Asked(list(requests.values()))), strict=True))
        if not requests:
            return {}
        answers = yield Asked(list(requests.values()), record.keeper(list(requests)))
        self._flush(record)
        return dict(zip(requests, answers, strict=True))

    def _flush(self, record: BatchRecord) -> None:
        try:
            record.flush()
        except StoreError as e:
            self._give_up(e)
            raise

    def _retried_requests(
        self, requests: Mapping[int, Request], outcomes: Mapping[int, Outcome], attempt: int
    ) -> dict[int, Request]:
        """Return new requests for rows that were cut off or are invalid, by row number."""
        again: dict[int, Request] = {}
        for i, request in requests.items():
            sampling, error = request.sampling, outcomes[i].error
            if error is not None and error.code == "truncated":
                again[i] = replace(request, sampling=sampling.replace({"max_tokens": sampling.max_tokens * 2**attempt}))
            else:
                again[i] = replace(request, sampling=sampling.resampled(attempt))
        self._counters.add(retried=len(again))
        increment_counter("rows retried", len(again), description="rows asked again: cut off, or invalid")
        return again

    def _submit(self, asked: Asked) -> Future[list[Outcome]]:
        self._raise_failure()
        requests, each = asked
        future: Future[list[Outcome]] = Future()
        if not requests:
            future.set_result([])
            return future
        if (late := self._limits.past_deadline()) is not None:  # no engine is opened, or opened again, for that
            future.set_result([late] * len(requests))
            self._counters.add(unsent=len(requests))
            return future
        try:
            future = self._opened().submit(requests, dedupe=self._spec.options.dedupe, each=each, limits=self._limits)
        except EngineClosedError:  # it was idle, and was closed just now to make room for another query's engine
            future = self._opened().submit(requests, dedupe=self._spec.options.dedupe, each=each, limits=self._limits)
        self._in_flight.add(future)
        future.add_done_callback(self._ended)
        if self._failure is not None:  # another batch failed while this one was tokenized
            future.cancel()
        self._raise_failure()
        return future

    def _ended(self, future: Future[list[Outcome]]) -> None:
        self._in_flight.discard(future)
        if not future.cancelled() and isinstance(error := future.exception(), EngineDiedError):
            self._give_up(error)  # so no batch of this query opens another engine

    def _give_up(self, error: DaftVLLMError) -> None:
        """Fail this query's other batches too: Daft 0.7 does not stop its coroutines after a query has failed."""
        self._failure = error
        for future in list(self._in_flight):
            future.cancel()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(*self._failure.args)

    def _result(self, batch: Batch, answered: Mapping[int, Outcome], read: Mapping[int, Parsed]) -> Series:
        spec = self._spec
        outcomes = [answered[i] for i in range(batch.rows)]
        parsed = [with_stop_named(read[i], outcome) for i, outcome in enumerate(outcomes)]
        values = value_array(parsed, spec.format.dtype)
        self._report(outcomes, parsed, refused=len(batch.refused), column=batch.name)
        if spec.options.details:
            return result_series(outcomes, parsed, values, spec.dtype).rename(batch.name)
        return Series.from_arrow(values, dtype=spec.dtype).rename(batch.name)

    def _parsed(self, batch: Batch, row: int, outcome: Outcome) -> Parsed:
        """Return a row's value. Whatever goes wrong with an answer is that row's error, never the batch's."""
        try:
            return self._spec.format.parse_outcome(batch.names[row], outcome)
        except Exception as e:
            logger.warning("row %d of a batch of %r can't be read: %s", row, batch.name, reason_of(e))
            return invalid(reason_of(e))

    def _opened(self) -> OfflineEngine:
        """Return the engine. The first batch opens it, while others wait."""
        with self._lock:
            if self._engine is None or self._engine.is_over:
                self._raise_failure()  # another batch has just tried: the load would fail again
                try:
                    engine = opened_engine(self._spec)
                except Exception as e:
                    self._give_up(e if isinstance(e, DaftVLLMError) else EngineStartError(brief(e, 600)))
                    raise
                self._engine = engine
                self._counters.opened()
            engine = self._engine
        self._counters.begin()
        return engine

    def _report(
        self, outcomes: list[Outcome], parsed: list[Parsed], *, refused: int = 0, column: str = "the answers"
    ) -> None:
        """Add the batch to Daft's metrics. If rows failed, log that, or raise it if ``on_error`` is "raise"."""
        errors = {i: one.error for i, one in enumerate(parsed) if one.error is not None}
        failed = {i: error for i, error in errors.items() if error.code not in NOT_ASKED}
        increment_counter("rows", len(outcomes), description="rows answered, including failed ones")
        increment_counter("rows failed", len(failed), description="rows with an error instead of a value")
        for name, amount in self._counters.since_last_batch().items():
            increment_counter(name.replace("_", " "), amount)
        self._counters.add(failed=len(failed), unsent=refused)
        self._counters.begin()  # no engine is opened for a batch of which no row is sent
        self._counters.write()
        if failed:
            counts = count_by_code([Outcome(error=error) for error in failed.values()])
            summary = ", ".join(f"{code} {count}" for code, count in counts.items())
            message = f"{len(failed)} of {len(outcomes)} rows have no value ({summary}); "
            told = {i: error for i, error in failed.items() if error.code not in QUOTES_THE_ROW}
            first = first_row(failed, column)
            if self._spec.options.on_error == "raise":
                self._give_up(error := RowError(message + first))
                raise error
            logger.warning("%s", message + first_row(told or failed, column, quote=False))
            logger.debug("%s", first)


def _may_be_retried(row: Parsed) -> bool:
    """Whether a row was cut off or is invalid."""
    return row.error is not None and row.error.code in ("truncated", "invalid_output")


def _without_frames(error: DaftVLLMError) -> DaftVLLMError:
    """Return the error without the frames of this package: its message says it, and Daft adds frames enough."""
    logger.debug("a batch failed", exc_info=error)
    return error.with_traceback(None)
