"""Which GPUs are seen and claimed, asked of NVML's own Python package."""

from __future__ import annotations

from pathlib import Path

import pytest

from daft_vllm.engine.setup.devices.claims import GpuClaim
from daft_vllm.engine.setup.devices.driver import driver_problem, gpu_states, visible_gpus
from daft_vllm.errors import DeviceError
from tests.gpu_check.cards import GIB, fake_gpus, uuid


def test_gpus_are_counted_by_the_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In a container that has the machine's fourth GPU only, it is number 0."""
    (tmp_path / "nvidia3").touch()
    assert visible_gpus({}, tmp_path) == ["0"]
    monkeypatch.setenv("FAKE_GPUS", fake_gpus("l4", "l4", "l4"))
    assert visible_gpus({}, tmp_path) == ["0", "1", "2"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "2,0,3,1"}, tmp_path) == ["2", "0"], "CUDA stops at the first unknown"


def test_no_driver_and_no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert driver_problem() is None
    monkeypatch.setenv("FAKE_GPUS", "")
    assert driver_problem() == "NVIDIA's driver 580.65.06 sees no GPU"
    assert (visible_gpus({}, tmp_path), gpu_states(["0"])) == ([], [])
    monkeypatch.delenv("FAKE_GPUS")
    assert driver_problem() == "NVIDIA's driver can't be asked (Driver Not Loaded)"
    assert (visible_gpus({}, tmp_path), gpu_states(["0"])) == ([], [])
    with pytest.raises(
        DeviceError, match=r"none is visible here \(NVIDIA's driver can't be asked \(Driver Not Loaded\)"
    ):
        GpuClaim(1, visible_gpus({}, tmp_path), tmp_path)


def test_a_gpu_by_number_by_name_and_by_the_beginning_of_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FAKE_GPUS", fake_gpus("l4", "h100"))
    for name in ("1", uuid(1), uuid(1)[:14]):
        [state] = gpu_states([name])
        assert (state.id, state.uuid, state.name) == (name, uuid(1), "NVIDIA H100 80GB HBM3")
    assert gpu_states(["GPU-0000"]) == [], "two begin so"
    claim = GpuClaim(1, ["1"], tmp_path)
    for name in (uuid(1), uuid(1)[:14]):
        with pytest.raises(DeviceError, match="0 of the 1"):
            GpuClaim(0.5, [name], tmp_path)
    claim.release()


def test_a_busy_gpu_is_not_taken_while_another_is_idle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FAKE_GPUS", fake_gpus("l4", "l4", free={0: 1.0}))
    states = gpu_states(visible_gpus({}))
    assert [state.free // GIB for state in states] == [1, 22]
    first, second = (GpuClaim(1, visible_gpus({}), tmp_path) for _ in range(2))
    assert (first.ids, second.ids) == (["1"], ["0"])
