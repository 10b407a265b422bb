"""The actor that Daft runs. It has a picklable spec, opens the engine on first use, and answers batch after batch."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from pathlib import Path

from daft import Series
from daft.udf.metrics import increment_counter

from daft_vllm.engine import EngineStats, OfflineEngine, Outcome, Request, SamplingOptions
from daft_vllm.engine.requests.outcome import NOT_ASKED, QUOTES_THE_ROW, count_by_code
from daft_vllm.engine.setup.guardian import raise_if_python_ends
from daft_vllm.errors import (
    DaftVLLMError,
    EngineClosedError,
    EngineDiedError,
    EngineStartError,
    OptionError,
    RowError,
    SchemaError,
    StoreError,
)
from daft_vllm.udf.answers.results import first_row, result_series, value_array, with_stop_named
from daft_vllm.udf.answers.return_format import Parsed, invalid, reason_of
from daft_vllm.udf.columns.cells import CellReader
from daft_vllm.udf.columns.files import FileAccess
from daft_vllm.udf.worker.batch import Asked, Batch, Steps, next_step
from daft_vllm.udf.worker.opening import opened_engine
from daft_vllm.udf.worker.progress import ProgressWriter
from daft_vllm.udf.worker.spec import PromptSpec
from daft_vllm.udf.worker.stored import StoredAnswers
from daft_vllm.wording import brief

logger = logging.getLogger("daft_vllm")

_METRICS = (
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


class PromptActor:
    """Answers batches of prompts with this process's engine.

    The same class runs in a process of its own, in a Ray actor, and in the driver. Several threads may call it at once.
    """

    def __init__(self, spec: PromptSpec) -> None:
        self._spec = spec
        self._cells = CellReader(
            spec.parts,
            spec.turns,
            spec.options.files or FileAccess(),
            lambda: self._opened().takes("image"),
            skip_blank=spec.options.skip_blank,
        )
        self._lock = threading.Lock()
        self._engine: OfflineEngine | None = None
        self._before = self._counted = EngineStats()
        self._progress: ProgressWriter | None = None
        self._failed = 0
        self._refused = 0
        self._retried = 0
        self._found = 0
        self._stored: StoredAnswers | None = None
        self._failure: DaftVLLMError | None = None
        self._in_flight: set[Future[list[Outcome]]] = set()
        self._batches: set[object] = set()  # those under way in the driver

    def answer(self, *columns: Series) -> Series:
        """Answer one batch. The result is a series of the spec's type, as long as the columns.

        Args:
            columns: the spec's ``parts`` and ``turns``; its ``row_options`` (null: the option's default); then the
                system messages, the adapters, and the names of the formats, each only if rows have their own.
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
        batch = self._batch_of(columns)
        outcomes = batch.outcomes((yield from self._ask(list(batch.requests.values()))))
        again = batch.requests
        for attempt in range(1, self._spec.options.retries + 1):
            again = self._retried_requests(batch, outcomes, again, attempt)
            outcomes |= dict(zip(again, (yield from self._ask(list(again.values()))), strict=True))
        return self._result(batch, outcomes)

    def _ask(self, requests: list[Request]) -> Generator[Asked, list[Outcome], list[Outcome]]:
        """Return the outcomes of requests. Those that are stored are not asked; the others are stored first."""
        if self._spec.store is None:
            return (yield Asked(requests))
        with self._lock:
            self._stored = stored = self._stored or StoredAnswers(self._spec.store)
            self._begin_progress()
        known, keys = stored.split(requests)
        unknown = [i for i, outcome in enumerate(known) if outcome is None]
        with self._lock:
            self._refused += keys.count(b"")
            self._found += len(requests) - len(unknown) - keys.count(b"")
        if unknown:
            answers = yield Asked([requests[i] for i in unknown], stored.keeper([keys[i] for i in unknown]))
            try:
                stored.flush()
            except StoreError as e:
                self._give_up(e)
                raise
            for i, answer in zip(unknown, answers, strict=True):
                known[i] = answer
        return [outcome for outcome in known if outcome is not None]

    def _retried_requests(
        self, batch: Batch, outcomes: Mapping[int, Outcome], asked: Iterable[int], attempt: int
    ) -> dict[int, Request]:
        """Return new requests for the rows in ``asked`` that were cut off or are invalid, by row number."""
        again: dict[int, Request] = {}
        for i in asked:
            request = batch.requests[i]
            error = self._parsed(batch, i, outcomes[i]).error
            if error is None:
                continue
            sampling = request.sampling
            if error.code == "truncated":
                again[i] = replace(request, sampling=sampling.replace({"max_tokens": sampling.max_tokens * 2**attempt}))
            elif error.code == "invalid_output":
                again[i] = replace(request, sampling=sampling.resampled(attempt))
        with self._lock:
            self._retried += len(again)
        increment_counter("rows retried", len(again), description="rows asked again: cut off, or invalid")
        return again

    def _batch_of(self, columns: Sequence[Series]) -> Batch:
        spec = self._spec
        parts, others = columns[: self._cells.num_columns], list(columns[self._cells.num_columns :])
        rows = len(parts[0])
        names: list[str | None] = others.pop().to_pylist() if spec.format.forms else [None] * rows
        adapters: list[str | None] = others.pop().to_pylist() if spec.row_adapter else [spec.adapter] * rows
        systems: list[str | None] = others.pop().to_pylist() if spec.row_system_message else [None] * rows
        refused: dict[int, Outcome] = {}
        requests: dict[int, Request] = {}
        prompts = self._cells.prompts(parts)
        for i, (prompt, system, sampling) in enumerate(
            zip(prompts, systems, self._sampling(rows, others), strict=True)
        ):
            if isinstance(prompt, Outcome):
                refused[i] = prompt
                continue
            if prompt is None:  # the engine returns the error for it, whatever the row's other options are
                requests[i] = Request(None)
                continue
            try:
                if isinstance(sampling, OptionError):
                    raise sampling
                constraint = spec.format.of_row(names[i]).constraint
                adapter = self._adapter_of(adapters[i])
            except (OptionError, SchemaError) as e:
                refused[i] = Outcome.failed("invalid_request", str(e))
                continue
            requests[i] = Request(
                prompt,
                system_message=spec.system_message if system is None else system,
                examples=spec.examples,
                preamble=spec.preambles.get(names[i]),
                thinking=spec.thinking,
                sampling=sampling,
                own_seed="seed" not in spec.row_options,  # a column's seed is used as it is
                constraint=constraint,
                apply_chat_template=spec.options.apply_chat_template,
                chat_template_kwargs=spec.chat_template_kwargs,
                adapter=adapter,
                toolbox=spec.toolbox,
            )
        return Batch(parts[0].name(), rows, refused, names, requests)

    def _adapter_of(self, name: str | None) -> str | None:
        known = self._spec.engine.adapters
        if name is not None and name not in known:
            raise OptionError(f"there is no adapter {name!r}: the column has to name one of {', '.join(known)}.")
        return name

    def _submit(self, asked: Asked) -> Future[list[Outcome]]:
        self._raise_failure()
        requests, each = asked
        future: Future[list[Outcome]] = Future()
        if not requests:
            future.set_result([])
            return future
        try:
            future = self._opened().submit(requests, dedupe=self._spec.options.dedupe, each=each)
        except EngineClosedError:  # it was idle, and was closed just now to make room for another query's engine
            future = self._opened().submit(requests, dedupe=self._spec.options.dedupe, each=each)
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

    def _sampling(self, rows: int, options: Sequence[Series]) -> Iterator[SamplingOptions | OptionError]:
        """Return each row's sampling options, or the error if they can't be used."""
        spec = self._spec
        if not options:
            yield from itertools.repeat(spec.sampling, rows)
            return
        seen: dict[str, SamplingOptions | OptionError] = {}
        for values in zip(*(series.to_pylist() for series in options), strict=True):
            # Lists and maps can't be keys, and the text of a long array of numpy is shortened.
            key = repr([value.tolist() if hasattr(value, "tolist") else value for value in values])
            if key not in seen:
                try:
                    given = {n: v for n, v in zip(spec.row_options, values, strict=True) if v is not None}
                    seen[key] = spec.sampling.replace(given)
                except OptionError as e:
                    seen[key] = e
            yield seen[key]

    def _result(self, batch: Batch, answered: Mapping[int, Outcome]) -> Series:
        spec = self._spec
        outcomes = [answered[i] for i in range(batch.rows)]
        parsed = [with_stop_named(self._parsed(batch, i, outcome), outcome) for i, outcome in enumerate(outcomes)]
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
                self._before = self._counted = engine.stats()
                self._engine = engine
            self._begin_progress()
            return self._engine

    def _begin_progress(self) -> None:
        """Keep counters for whoever watches this query. Daft runs the expression's next query with the same actor."""
        folder = self._spec.options.progress_folder
        if folder is None or not Path(folder).is_dir() or not (self._progress is None or self._progress.is_over):
            return
        if self._progress is not None:
            self._before = self._engine.stats() if self._engine is not None else EngineStats()
            self._failed = self._refused = self._retried = self._found = 0
        self._progress = ProgressWriter(folder, self._counters)

    def _report(
        self, outcomes: list[Outcome], parsed: list[Parsed], *, refused: int = 0, column: str = "the answers"
    ) -> None:
        """Add the batch to Daft's metrics. If rows failed, log that, or raise it if ``on_error`` is "raise"."""
        errors = {i: one.error for i, one in enumerate(parsed) if one.error is not None}
        failed = {i: error for i, error in errors.items() if error.code not in NOT_ASKED}
        increment_counter("rows", len(outcomes), description="rows answered, including failed ones")
        increment_counter("rows failed", len(failed), description="rows with an error instead of a value")
        for name, amount in self._progress_since_last_batch().items():
            increment_counter(name.replace("_", " "), amount)
        with self._lock:
            self._failed += len(failed)
            self._refused += refused
            self._begin_progress()  # no engine is opened for a batch of which no row is sent
        if self._progress is not None:
            self._progress.write()
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

    def _progress_since_last_batch(self) -> dict[str, int]:
        """Return how much the engine's counters have grown since the last report of a batch."""
        with self._lock:
            now, before = self._engine.stats() if self._engine is not None else EngineStats(), self._counted
            self._counted = now
        return {name: int(getattr(now.since(before), name)) for name in _METRICS}

    def _counters(self) -> Mapping[str, float]:
        """Return the engine's counters since this query began to use it, including queries that run at the same time.

        Failed rows are counted as their batch ends: those that failed in the engine, that were not sent, or whose
        answer doesn't satisfy the format. A row that is asked again counts once.
        """
        stats = self._engine.stats().since(self._before) if self._engine is not None else EngineStats()
        stats.failed = self._failed
        unsent = self._refused + self._found
        stats.rows += unsent
        stats.done += unsent
        stats.unsent += unsent
        stats.stored = self._found
        stats.retried = self._retried
        stats.rows -= self._retried
        stats.done = max(0, stats.done - self._retried)
        return stats.as_dict()


def _without_frames(error: DaftVLLMError) -> DaftVLLMError:
    """Return the error without the frames of this package: its message says it, and Daft adds frames enough."""
    logger.debug("a batch failed", exc_info=error)
    return error.with_traceback(None)
