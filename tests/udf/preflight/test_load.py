"""What is looked at right before a load: faults are injected, the driver's answers among them."""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import daft
import psutil
import pytest
from daft import col

from daft_vllm import prompt
from daft_vllm.engine import EngineConfig
from daft_vllm.engine.setup.devices.driver import GpuState
from daft_vllm.errors import DaftVLLMError, DeviceError, ModelError
from daft_vllm.udf.preflight import load
from daft_vllm.udf.preflight.load import check_fits, check_gpus, with_card_settings
from daft_vllm.udf.preflight.model import Model

GIB = 2**30


def l4(free: float = 21.9, gpu: str = "0") -> GpuState:
    return GpuState(gpu, "NVIDIA L4", 22 * GIB, int(free * GIB), (8, 9), "570.1")


def test_memory_that_somebody_else_holds() -> None:
    config = EngineConfig("qwen3-8b", gpus=1)
    check_gpus(config, 15 * GIB, [l4()])
    with pytest.raises(DeviceError, match=r"GPU 0 \(NVIDIA L4\) has 9.0 of 22.0 GiB free.*nvidia-smi names it"):
        check_gpus(config, 15 * GIB, [l4(free=9)])
    check_gpus(EngineConfig("qwen3-8b", {"gpu_memory_utilization": 0.4}, gpus=1), 5 * GIB, [l4(free=9)])
    check_gpus(EngineConfig("qwen3-8b", gpus=0.5), 5 * GIB, [l4(free=11)])


def test_weights_that_are_too_large() -> None:
    with pytest.raises(ModelError, match=r"take 51.0 GiB of each of 1 GPUs, which give 20.2: use more GPUs"):
        check_gpus(EngineConfig("m", gpus=1), 51 * GIB, [l4()])
    check_gpus(EngineConfig("m", gpus=4), 51 * GIB, [l4(gpu=str(i)) for i in range(4)])
    check_gpus(EngineConfig("m", {"quantization": "fp8_per_tensor"}, gpus=1), 30 * GIB, [l4()])


def test_an_estimate_only_warns(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(load, "gpu_states", lambda ids: [l4()])
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with caplog.at_level(logging.WARNING, "daft_vllm"):
        check_fits(EngineConfig("Qwen/Qwen3-8B", {"max_model_len": 40960}, gpus=1))
    assert "by estimate this won't do" in caplog.text
    assert "max_model_len=" in caplog.text
    with pytest.raises(ModelError, match="of each of 1 GPUs"):
        check_fits(EngineConfig("google/gemma-3-27b-it", gpus=1))


def test_a_card_that_cannot_compute_with_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    t4 = GpuState("0", "Tesla T4", 15 * GIB, 15 * GIB, (7, 5), "570.1")
    monkeypatch.setattr(load, "gpu_states", lambda ids: [t4])
    dummy = {"load_format": "dummy"}
    with pytest.raises(ModelError, match=r"a Tesla T4 has compute capability 7.5, .* mxfp4 weights need 8.0"):
        check_fits(EngineConfig("gpt-oss-20b", dummy, gpus=1))
    with pytest.raises(ModelError, match="a Tesla T4 has no bfloat16, which gemma-3-1b needs"):
        check_fits(EngineConfig("gemma-3-1b", dummy, gpus=1))
    check_fits(EngineConfig("gemma-3-1b", {**dummy, "dtype": "float32"}, gpus=1))
    check_fits(EngineConfig("qwen3-0.6b", dummy, gpus=1))


def test_the_card_decides_in_the_process_that_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    h100 = GpuState("0", "NVIDIA H100 80GB HBM3", 79 * GIB, 78 * GIB, (9, 0), "570.1")
    monkeypatch.setattr(load, "gpu_states", lambda ids: [h100])
    config = EngineConfig("gpt-oss-20b", {"max_num_seqs": 64}, gpus=1)
    assert with_card_settings(config).engine_args == {"max_num_seqs": 64, "max_cudagraph_capture_size": 2048}
    given = EngineConfig("gpt-oss-20b", {"max_cudagraph_capture_size": 16}, gpus=1)
    assert with_card_settings(given) == given
    assert with_card_settings(replace(config, gpus=0)) == replace(config, gpus=0)


def test_weights_are_counted_once(tmp_path: Path) -> None:
    for name in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "pytorch_model.bin"):
        (tmp_path / name).write_bytes(bytes(100))
    (tmp_path / "consolidated.safetensors").write_bytes(bytes(200))
    (tmp_path / "config.json").write_text("{}")
    assert Model(str(tmp_path)).file_bytes == 200
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-00003-of-00003.safetensors"}}')
    assert Model(str(tmp_path)).file_bytes is None


def test_a_disk_that_is_too_small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=3 * GIB))
    with pytest.raises(ModelError, match=r"files take 15.3 GiB, and .* has 3.0: set HF_HOME elsewhere"):
        check_fits(EngineConfig("Qwen/Qwen3-8B", gpus=1))


@pytest.mark.other_engine
def test_a_job_whose_model_is_too_large_for_the_memory(monkeypatch: pytest.MonkeyPatch, smollm2: str) -> None:
    """Through the public API: nothing is loaded, and the query fails with the reason."""
    memory = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory._replace(available=100 * 2**20))
    df = daft.from_pydict({"q": ["a"]})
    fixed: dict[str, Any] = {"gpus": 0, "use_process": False, "engine_args": {"max_model_len": 96}}
    with pytest.raises(Exception, match=r"the weights take 0\.\d GiB, and 0.1 GiB of memory are free") as e:
        df.with_column("a", prompt(col("q"), **fixed)).collect()
    seen: BaseException | None = e.value
    while seen is not None and not isinstance(seen, DaftVLLMError):
        seen = seen.__cause__ or seen.__context__
    assert isinstance(seen, ModelError)
