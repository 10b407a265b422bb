"""GPU ids and claims, with made-up masks and lock folders."""

from __future__ import annotations

import os
import stat
import tempfile
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


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder in which others may write. Returns where the folder of the locks will be."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"daft-vllm-gpus-{os.geteuid()}"


def test_the_folder_of_the_locks_is_for_one_user(shared: Path) -> None:
    before = os.umask(0)
    try:
        claim = GpuClaim(1, ["0"])
        assert stat.S_IMODE(shared.stat().st_mode) == 0o700
        assert stat.S_IMODE((shared / "0.0").stat().st_mode) == 0o600
    finally:
        os.umask(before)
    shared.chmod(0o777)  # as an earlier release may have made it
    with pytest.raises(DeviceError, match="0 of the 1"):
        GpuClaim(1, ["0"])
    assert stat.S_IMODE(shared.stat().st_mode) == 0o700
    claim.release()
    assert GpuClaim(1, ["0"]).ids == ["0"]


@pytest.mark.parametrize("kind", ["link", "dangling", "file", "fifo"])
def test_a_folder_of_locks_that_is_none(shared: Path, tmp_path: Path, kind: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "0.0").write_text("precious")
    make = {
        "link": lambda: shared.symlink_to(elsewhere),
        "dangling": lambda: shared.symlink_to(tmp_path / "nothing"),
        "file": shared.touch,
        "fifo": lambda: os.mkfifo(shared),
    }
    make[kind]()
    with pytest.raises(DeviceError, match=r"can't be used .*: remove it, or set TMPDIR"):
        GpuClaim(1, ["0"])
    assert (elsewhere / "0.0").read_text() == "precious"
    assert not (tmp_path / "nothing").exists()


def test_a_folder_of_locks_of_somebody_else(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    GpuClaim(1, ["0"]).release()
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    shared.rename(shared.with_name(f"daft-vllm-gpus-{uid + 1}"))
    with pytest.raises(DeviceError, match="belongs to another user"):
        GpuClaim(1, ["0"])


def test_a_lock_that_is_a_link_or_has_content(shared: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    shared.mkdir()
    (shared / "0.0").symlink_to(tmp_path / "precious")
    with pytest.raises(DeviceError, match="can't be used"):
        GpuClaim(1, ["0"])
    (shared / "0.0").unlink()
    (shared / "0.0").hardlink_to(tmp_path / "precious")
    claim = GpuClaim(1, ["0"])
    assert (tmp_path / "precious").read_text() == "precious"
    claim.release()
    (shared / "0.0").unlink()
    os.mkfifo(shared / "0.0")  # doesn't block
    assert GpuClaim(1, ["0"]).ids == ["0"]
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(DeviceError):
        GpuClaim(2, ["0", "1"])
    assert len(os.listdir("/proc/self/fd")) == before
