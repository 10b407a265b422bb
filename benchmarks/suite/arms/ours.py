"""daft-vllm's ``prompt``, with the engine in its own process or in the driver."""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import daft
import pyarrow as pa
from daft import col

from benchmarks.suite.arms.base import EngineSetting, Measured, NotExpressible, in_row_order, job_table
from benchmarks.suite.job import Job
from daft_vllm import prompt, shared_first
from daft_vllm.udf.worker.progress import read_progress

POLL_SECONDS = 0.05
VLLM_KERNELS = {"ir_op_priority": {"rms_norm": ["native"], "fused_add_rms_norm": ["native"]}}
"""What vLLM chooses by itself on a CPU."""


class _Answers(NamedTuple):
    texts: list[str | None]
    prompt_tokens: int
    cached_tokens: int


class _Query:
    """The query of one job: the part that all arms of daft-vllm share."""

    def __init__(self, setting: EngineSetting, *, in_pieces: bool = False, **options: Any) -> None:
        self._setting = setting
        self._in_pieces = in_pieces
        self._options = options

    def run(self, job: Job, progress_folder: str, *, shared_fields_first: bool = False) -> _Answers:
        """Run the query and collect its result."""
        columns: dict[str, Any] = {"id": list(range(job.rows)), "prompt": list(job.prompts)}
        max_tokens: Any = job.max_tokens
        if not isinstance(max_tokens, int):
            columns["max_tokens"] = job.limits()
            max_tokens = col("max_tokens")
        table = job_table(columns, in_pieces=self._in_pieces)
        messages = col("prompt")
        if shared_fields_first:
            if job.table is None or job.template is None:
                raise NotExpressible("the job's prompts do not come from a table")
            table = daft.from_arrow(job.table.append_column("id", pa.array(range(job.rows))))
            messages = shared_first(table, job.template).messages
        answer = prompt(
            messages,
            dict(job.schema) if job.schema is not None else None,
            model=self._setting.model,
            engine_args=dict(self._setting.engine_args),
            gpus=self._setting.gpus,
            apply_chat_template=False,
            temperature=0.0,
            max_tokens=max_tokens,
            ignore_eos=job.ignore_eos,
            # Needed for the text as the model wrote it, and for the token counts. It costs a little time, against us.
            details=True,
            progress_folder=progress_folder,
            **self._options,
        )
        result = table.select(col("id"), answer.alias("answer")).to_pydict()
        answers = result["answer"]
        return _Answers(
            in_row_order(result["id"], [one["text"] for one in answers], job.rows),
            sum(one["prompt_tokens"] for one in answers),
            # A row that got the answer of an equal row counts as cached.
            sum(one["cached_tokens"] for one in answers),
        )


class Ours:
    """``ours``: the default, a process per engine, so that every query loads the model again.

    The worker writes its counters into the progress folder as soon as its engine is open, and after each batch. A
    run's seconds start when that file is first written, and end when it first counts every row as done. Starting and
    ending the process and loading the model are left out, as they are for the other arms.
    """

    def __init__(self, name: str, setting: EngineSetting) -> None:
        self._query = _Query(setting, use_process=True)

    def open(self) -> float:
        """Load nothing: each query does."""
        return 0.0

    def run(self, job: Job) -> Measured:
        """Run the query and collect its result."""
        with tempfile.TemporaryDirectory(prefix="progress-") as folder:
            watch = _FolderWatch(Path(folder), job.rows)
            started = time.time()
            try:
                answers = self._query.run(job, folder)
            finally:
                watch.stop()
            counters = _read_counters(folder)
        if watch.opened is None or watch.done is None:
            raise RuntimeError("no progress file counted every row: loading and answering can't be timed apart")
        return Measured(
            watch.done - watch.opened,
            *answers,
            load_seconds=watch.opened - started,
            **counters,
        )

    def close(self) -> None:
        """Nothing is left open."""


class OursStream:
    """``ours-stream``: the engine in the driver, kept loaded; ``ours-stream-64``: with batches of 64 rows.

    ``ours-stream-small``: with a table that comes in pieces, as for ``daft-provider-small``.

    ``ours-stream-plain``, on a CPU: with the memory settings and kernels that vLLM's core has in the other arms. The
    remaining differences are the order of the rows, their flow, and the front end.

    ``ours-shared``, only for the workload ``table``: like ``ours-stream``, with the template's lines in the order in
    which rows share the most. Choosing that order is timed too.
    """

    def __init__(self, name: str, setting: EngineSetting) -> None:
        options = {"batch_size": 64} if name.endswith("-64") else {}
        self._shared_fields_first = name == "ours-shared"
        self._runs_here = not name.endswith("-plain") or not setting.gpus
        if name.endswith("-plain"):
            setting = replace(setting, engine_args={**setting.engine_args, "kernel_config": VLLM_KERNELS})
        self._query = _Query(setting, in_pieces=name.endswith("-small"), use_process=False, **options)

    def open(self) -> float:
        """Load the model by answering one row, as a user would."""
        if not self._runs_here:
            raise NotExpressible("on a GPU daft-vllm changes neither memory settings nor kernels")
        started = time.monotonic()
        self._run(Job("open", "open", (" hello",), max_tokens=1), shared_fields_first=False)
        return time.monotonic() - started

    def run(self, job: Job) -> Measured:
        """Run the query and collect its result."""
        return self._run(job, shared_fields_first=self._shared_fields_first)

    def close(self) -> None:
        """Do nothing: the engine ends with the process."""

    def _run(self, job: Job, *, shared_fields_first: bool) -> Measured:
        with tempfile.TemporaryDirectory(prefix="progress-") as folder:
            started = time.monotonic()
            answers = self._query.run(job, folder, shared_fields_first=shared_fields_first)
            seconds = time.monotonic() - started
            counters = _read_counters(folder)
        return Measured(seconds, *answers, **counters)


class _FolderWatch:
    """Records when the worker's progress file appears, and when it first counts every row as done."""

    def __init__(self, folder: Path, rows: int) -> None:
        self.opened: float | None = None
        self.done: float | None = None
        self._folder = folder
        self._rows = rows
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(POLL_SECONDS):
            self._look()
        self._look()

    def _look(self) -> None:
        for path in self._folder.glob("*.json"):
            try:
                # Both from one open file, because the worker may replace it in between.
                with path.open(encoding="utf-8") as file:
                    changed = os.fstat(file.fileno()).st_mtime
                    done = json.load(file)["done"]
            except OSError:
                continue
            self.opened = changed if self.opened is None else self.opened
            if done >= self._rows and self.done is None:
                self.done = changed


def _read_counters(folder: str) -> dict[str, Any]:
    """Return what the query's worker counted up to its last batch, by the names of ``Measured``."""
    counters = read_progress(folder)
    if not counters["steps"]:
        return {}
    return {
        "mean_running": counters["mean_running"],
        "output_tokens": int(counters["completion_tokens"]),
        "steps": int(counters["steps"]),
        "optimal_tokens": int(counters["optimal_tokens"]),
    }
