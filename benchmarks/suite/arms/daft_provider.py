"""Daft's own ``prompt`` with the provider ``vllm-prefix-caching``."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from daft import col
from daft.functions import prompt

from benchmarks.suite.arms.base import EngineSetting, Measured, NotExpressible, in_row_order, job_table
from benchmarks.suite.arms.sampling import sampling_params
from benchmarks.suite.counters import Counts, EngineCounter
from benchmarks.suite.job import Job


class DaftProvider:
    """``daft-provider``: buffers of 5,000 rows, its default; ``daft-provider-small``: of a tenth of the rows.

    The second one stands for a table that is larger than the buffer, in proportion. Its table comes in pieces, as from
    files or row groups. If a table comes whole, as one in memory does, the provider sorts all its rows, whatever the
    size of the buffer.

    The provider builds its engine within each query. Here ``open`` builds one with the same class and arguments, and
    the executor of each query gets that one. All executors have to use the event loop of the first one, because vLLM's
    output handler runs there. Both favour the peer: none of its queries pays for loading. Nothing else is changed.
    """

    def __init__(self, name: str, setting: EngineSetting) -> None:
        self._small = name == "daft-provider-small"
        self._setting = setting
        self._counter: EngineCounter | None = None

    def open(self) -> float:
        """Start the engine and let each query's executor find it."""
        started = time.monotonic()
        from vllm import AsyncEngineArgs, AsyncLLMEngine

        args = AsyncEngineArgs(model=self._setting.model, **self._setting.engine_args)
        engine = AsyncLLMEngine.from_engine_args(args)
        self._counter = EngineCounter().attach(engine)
        seconds = time.monotonic() - started
        _hand_out(engine, AsyncLLMEngine)
        return seconds

    def run(self, job: Job) -> Measured:
        """Run the query and collect its result; without ``open`` before it, the provider loads the model itself."""
        if not isinstance(job.max_tokens, int):
            raise NotExpressible("one SamplingParams for the whole column: no max_tokens row by row")
        before = self._counter.counts.copy() if self._counter else Counts()
        started = time.monotonic()
        ask: Any = prompt  # its overloads don't know the options of this provider
        options: dict[str, Any] = {"max_buffer_size": max(1, job.rows // 10)} if self._small else {}
        answer = ask(
            col("prompt"),
            provider="vllm-prefix-caching",
            model=self._setting.model,
            engine_args=dict(self._setting.engine_args),
            generate_args={"sampling_params": sampling_params(job)[0]},
            gpus_per_actor=self._setting.gpus,
            **options,
        )
        table = job_table({"id": list(range(job.rows)), "prompt": list(job.prompts)}, in_pieces=self._small)
        result = table.select(col("id"), answer.alias("text")).to_pydict()
        texts = in_row_order(result["id"], result["text"], job.rows)
        seconds = time.monotonic() - started
        if self._counter is None:
            return Measured(seconds, texts)
        counts = self._counter.counts.since(before)
        return Measured.counted(seconds, texts, counts)

    def close(self) -> None:
        """Do nothing: the engine ends with the process."""


def _hand_out(engine: Any, engine_class: Any) -> None:
    """Return ``engine`` to every caller that builds one, and give the first executor's event loop to all later ones."""
    from daft.execution import vllm as peer

    executor_class: Any = peer.LocalVLLMExecutor
    run_event_loop = executor_class._run_event_loop
    loops: list[asyncio.AbstractEventLoop] = []

    def share_event_loop(executor: Any) -> None:
        if loops:
            executor.loop = loops[0]
            executor.loop_ready.set()
            return
        new_event_loop = asyncio.new_event_loop

        def keep_loop() -> asyncio.AbstractEventLoop:
            asyncio.new_event_loop = new_event_loop
            loops.append(new_event_loop())
            return loops[0]

        # The peer's own method creates the loop and then runs it for ever. Its one call is replaced, to get the loop.
        asyncio.new_event_loop = keep_loop
        run_event_loop(executor)

    engine_class.from_engine_args = classmethod(lambda cls, *args, **kwargs: engine)
    executor_class._run_event_loop = share_event_loop
