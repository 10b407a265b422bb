"""GPU ids and claims, with made-up masks and lock folders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from daft_vllm.engine.setup.devices import GpuClaim, visible_gpus
from daft_vllm.errors import DeviceError


@pytest.mark.parametrize(
    ("mask", "ids"),
    [("0,2", ["0", "2"]), ("", []), ("-1", []), ("1,-1,2", ["1"]), ("GPU-a, MIG-x", ["GPU-a", "MIG-x"])],
)
def test_the_inherited_mask_is_honoured(tmp_path: Path, mask: str, ids: list[str]) -> None:
    (tmp_path / "nvidia7").touch()
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": mask}, tmp_path) == ids


def test_devices_without_a_mask(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert visible_gpus({}, tmp_path) == ["0", "2", "10"]


def test_claims_are_disjoint_and_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = GpuClaim(1, ["4", "5", "6"], tmp_path)
    pair = GpuClaim(2, ["4", "5", "6"], tmp_path)
    assert (first.ids, pair.ids) == (["4"], ["5", "6"])
    with pytest.raises(DeviceError, match="0 of the 3"):
        GpuClaim(1, ["4", "5", "6"], tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    with pair.visible():
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "5,6"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,5,6"
    first.release()
    assert GpuClaim(1, ["4", "5", "6"], tmp_path).ids == ["4"]


def test_a_claim_that_fails_holds_nothing(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="1 of the 1"):
        GpuClaim(2, ["0"], tmp_path)
    assert GpuClaim(1, ["0"], tmp_path).ids == ["0"]


def test_shares_of_one_gpu(tmp_path: Path) -> None:
    halves = [GpuClaim(0.5, ["0"], tmp_path) for _ in range(2)]
    assert [half.ids for half in halves] == [["0"], ["0"]]
    with pytest.raises(DeviceError):
        GpuClaim(0.5, ["0"], tmp_path)
