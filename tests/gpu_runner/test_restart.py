"""vLLM's core is killed with rows in flight: it is started again with the same runner, and the rows are answered."""

from __future__ import annotations

import time
from pathlib import Path

from daft_vllm import EngineConfig, OfflineEngine, Request, SamplingOptions
from tests.engine.process.test_lifecycle import core_of
from tests.gpu_runner import MARKS
from tests.gpu_runner.runners import ARGS, MODULES, what_runs
from tests.helpers import wait_gone

pytestmark = MARKS


def test_rows_are_replayed_by_the_same_runner(tiny: str) -> None:
    args = {**ARGS, "max_model_len": 256, "load_format": "dummy", "kv_cache_memory_bytes": 64 << 20}
    options = {"max_tokens": 12, "ignore_eos": True, "repetition_penalty": 1.2}
    requests = [Request(f"story {i}", sampling=SamplingOptions(**options)) for i in range(4)]
    requests += [Request("a tale", sampling=SamplingOptions(**options, temperature=1.0, seed=5))] * 2
    engine = OfflineEngine(EngineConfig(tiny, args, max_restarts=1))
    try:
        undisturbed = engine.run(requests)
        ran = what_runs(engine)
        assert ran["runner"] == MODULES["V2"]
        assert ran["kernel"] == "InterpretedFunction"
        assert ran["variables"]["TRITON_INTERPRET"] == ran["variables"]["VLLM_USE_V2_MODEL_RUNNER"] == "1"
        assert str(Path(__file__).parent / "site") in ran["variables"]["PYTHONPATH"].split(":")
        pids, steps = engine.process_ids, engine.stats().steps
        future = engine.submit(requests, dedupe=False)
        while engine.stats().steps < steps + 3:
            time.sleep(0.01)
        assert engine.stats().in_flight
        core_of(engine).kill()
        outcomes = future.result(timeout=300)
        assert engine.stats().restarts == 1
        assert engine.stats().failed == engine.stats().abandoned == 0
        assert [(one.error, one.text, one.completion_tokens) for one in outcomes] == [
            (None, one.text, 12) for one in undisturbed
        ]
        assert what_runs(engine) == ran
        assert not set(pids) & set(engine.process_ids)
        assert wait_gone(pids) == []
        engine.stats().check()
    finally:
        engine.close()
