"""The same questions to both of vLLM's runners."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from daft_vllm import OfflineEngine, close_engines
from daft_vllm.udf.worker import engines
from tests.gpu_runner.worker import EXTENSION

T = TypeVar("T")
RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
MODULES = {"V2": "vllm.v1.worker.cpu.model_runner", "V1": "vllm.v1.worker.cpu_model_runner"}
ARGS: dict[str, Any] = {
    "dtype": "float32",
    "max_num_seqs": 4,
    "kv_cache_memory_bytes": 256 << 20,
    "worker_extension_cls": EXTENSION,
}
FIXED: dict[str, Any] = {"gpus": 0, "use_process": False, "details": True}


@contextmanager
def vllm_with(runner: str) -> Iterator[None]:
    """Let vLLM use a runner, V1 or V2, in the engines that are opened inside the ``with`` block."""
    before = os.environ[RUNNER]
    os.environ[RUNNER] = str(int(runner == "V2"))
    close_engines()
    try:
        yield
        assert what_runs(open_engine())["runner"] == MODULES[runner]
    finally:
        close_engines()
        os.environ[RUNNER] = before


def of_both(ask: Callable[[], T]) -> dict[str, T]:
    """Return what ``ask`` returns with each runner. It uses one engine."""
    found = {}
    for runner in MODULES:
        with vllm_with(runner):
            found[runner] = ask()
    return found


def open_engine() -> OfflineEngine:
    """Return the only engine of this process."""
    (opened,) = engines._open.values()
    return opened.engine


def what_runs(engine: OfflineEngine) -> dict[str, Any]:
    """Return what the worker of an engine says of itself."""
    thread = engine._state._first
    core = thread._core
    assert core is not None
    asked = asyncio.run_coroutine_threadsafe(core.llm.collective_rpc("what_runs"), thread._loop)
    said: dict[str, Any] = asked.result(timeout=60)[0]
    return said


def told(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the details of rows without what a clock says."""
    return [{name: value for name, value in row["a"].items() if not name.endswith("seconds")} for row in rows]
