"""What people write first: a ``daft.cls`` around ``LLM.generate``."""

from __future__ import annotations

import threading
import time
from typing import Any

import daft
from daft import DataType, Series, col

from benchmarks.suite.arms.base import EngineSetting, Measured, in_row_order
from benchmarks.suite.arms.oracle import load_llm
from benchmarks.suite.arms.sampling import sampling_params
from benchmarks.suite.counters import EngineCounter
from benchmarks.suite.job import Job

# Daft instantiates the class for each query, and each instance would load the model again. It uses this engine instead,
# which favours the peer: none of its queries pays for loading.
_loaded: dict[str, Any] = {}
# Daft calls batches from several threads, and LLM is not thread-safe.
_lock = threading.Lock()


class Generator:
    """The user's class: rows of one batch go to one ``LLM.generate``, in the table's order."""

    def __init__(self, job_params: list[Any]) -> None:
        self._llm = _loaded["llm"]
        self._params = job_params

    def generate(self, prompts: Series, rows: Series) -> Series:
        """Answer one batch."""
        with _lock:
            params = [self._params[row] for row in rows.to_pylist()]
            outputs = self._llm.generate(prompts.to_pylist(), params, use_tqdm=False)
        return Series.from_pylist([output.outputs[0].text for output in outputs])


class Naive:
    """``naive-64``: batches of 64 rows; ``naive-all``: one batch of everything."""

    def __init__(self, name: str, setting: EngineSetting) -> None:
        self._batch_size = 64 if name == "naive-64" else None
        self._setting = setting
        self._counter = EngineCounter()

    def open(self) -> float:
        """Start the engine that every query uses."""
        _loaded["llm"], self._counter, seconds = load_llm(self._setting)
        return seconds

    def run(self, job: Job) -> Measured:
        """Run the query and collect its result."""
        batch_size = self._batch_size or job.rows

        class Batched(Generator):
            @daft.method.batch(return_dtype=DataType.string(), batch_size=batch_size)
            def __call__(self, prompts: Series, rows: Series) -> Series:
                return self.generate(prompts, rows)

        before = self._counter.counts.copy()
        started = time.monotonic()
        # Without use_process: the class has to find the engine in this process.
        answer = daft.cls(Batched)(sampling_params(job))
        table = daft.from_pydict({"id": list(range(job.rows)), "prompt": list(job.prompts)})
        result = table.select(col("id"), answer(col("prompt"), col("id")).alias("text")).to_pydict()
        texts = in_row_order(result["id"], result["text"], job.rows)
        seconds = time.monotonic() - started
        counts = self._counter.counts.since(before)
        return Measured.counted(seconds, texts, counts)

    def close(self) -> None:
        """Drop the engine."""
        _loaded.clear()
