"""GPU ids and claims, with made-up masks, cards and lock folders."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest

from daft_vllm.engine.setup.devices import claims
from daft_vllm.engine.setup.devices.claims import GpuClaim
from daft_vllm.engine.setup.devices.driver import GpuState, visible_gpus
from daft_vllm.engine.setup.environment import environment_variables
from daft_vllm.errors import DeviceError


@pytest.mark.parametrize(
    ("mask", "ids"),
    [
        ("0,2", ["0", "2"]),
        ("", []),
        ("-1", []),
        ("1,-1,2", ["1"]),
        ("GPU-a, MIG-x", ["GPU-a", "MIG-x"]),
        ("0,0,1", ["0", "1"]),
        ("2,x,3", ["2"]),
        ("all", []),
        ("none", []),
        ("NoDevFiles", []),
    ],
)
def test_the_inherited_mask_is_honoured(tmp_path: Path, mask: str, ids: list[str]) -> None:
    (tmp_path / "nvidia7").touch()
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": mask}, tmp_path) == ids


def test_without_a_mask_gpus_are_counted_as_cuda_does(tmp_path: Path) -> None:
    for name in ("nvidia3", "nvidia10", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert visible_gpus({}, tmp_path) == ["0", "1"], "CUDA's numbers, not those of the files"


def test_claims_are_disjoint_and_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = GpuClaim(1, ["4", "5", "6"], tmp_path)
    pair = GpuClaim(2, ["4", "5", "6"], tmp_path)
    assert (first.ids, pair.ids) == (["4"], ["5", "6"])
    with pytest.raises(DeviceError, match="0 of the 3"):
        GpuClaim(1, ["4", "5", "6"], tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    with environment_variables(pair.variables()):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "5,6"
        assert "CUDA_DEVICE_ORDER" not in os.environ, "the mask's ids are in the user's order"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,5,6"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    with environment_variables(pair.variables()):
        assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID", "the ids are the driver's"
    assert not {"CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES"} & set(os.environ)
    first.release()
    assert GpuClaim(1, ["4", "5", "6"], tmp_path).ids == ["4"]


def test_a_claim_that_fails_holds_nothing(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="1 of the 1"):
        GpuClaim(2, ["0"], tmp_path)
    assert GpuClaim(1, ["0"], tmp_path).ids == ["0"]


@pytest.mark.parametrize(
    ("held", "more"),
    [
        ([0.5, 0.5], [0.5, 0.25, 1]),
        ([0.5, 0.25], [0.5, 1, 2]),
        ([1], [0.1, 0.5, 1]),
        ([0.3, 0.3, 0.3], [0.3, 1]),
        ([0.6], [0.6, 1]),
        ([1 / 3, 1 / 3, 1 / 3], [1 / 3, 1]),
    ],
)
def test_shares_of_one_gpu_are_at_most_one(tmp_path: Path, held: list[float], more: list[float]) -> None:
    holding = [GpuClaim(share, ["0"], tmp_path) for share in held]
    assert [claim.ids for claim in holding] == [["0"]] * len(held)
    for share in more:
        with pytest.raises(DeviceError, match="are free"):
            GpuClaim(share, ["0"], tmp_path)
    for claim in holding:
        claim.release()
    assert os.listdir(tmp_path) == []
    assert GpuClaim(1, ["0"], tmp_path).ids == ["0"]


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three GPUs. Another user's process has most of number 0, and a desktop has a little of number 1."""
    free = {"0": 1.0, "1": 22.2, "2": 22.5}

    def states(ids: list[str]) -> list[GpuState]:
        numbers = [next(n for n in free if gpu in (n, f"GPU-{n}")) for gpu in ids]
        return [
            GpuState(gpu, "NVIDIA L4", 23 << 30, int(free[n] * 2**30), (8, 9), "580", f"GPU-{n}")
            for gpu, n in zip(ids, numbers, strict=True)
        ]

    monkeypatch.setattr(claims, "gpu_states", states)


@pytest.mark.usefixtures("cards")
def test_free_gpus_come_first(tmp_path: Path) -> None:
    ids = ["0", "1", "2"]
    first, second, third = (GpuClaim(1, ids, tmp_path / "a") for _ in range(3))
    assert (first.ids, second.ids, third.ids) == (["1"], ["2"], ["0"])
    assert GpuClaim(2, ids, tmp_path / "b").ids == ["1", "2"]
    share, other = (GpuClaim(0.5, ids, tmp_path / "c") for _ in range(2))
    assert (share.ids, other.ids) == (["1"], ["1"])


@pytest.mark.usefixtures("cards")
def test_a_gpu_has_one_claim_by_number_and_by_name(tmp_path: Path) -> None:
    by_number = GpuClaim(1, ["0"], tmp_path)
    with pytest.raises(DeviceError, match="0 of the 1"):
        GpuClaim(1, ["GPU-0"], tmp_path)
    by_number.release()
    assert GpuClaim(1, ["GPU-0"], tmp_path).ids == ["GPU-0"]


CLAIM = """
import sys, time
from pathlib import Path
from daft_vllm.engine.setup.devices.claims import GpuClaim
from daft_vllm.errors import DeviceError
sys.stdin.readline()
try:
    claim = GpuClaim(float(sys.argv[1]), sys.argv[2].split(","), Path(sys.argv[3]))
    print(*claim.ids, flush=True)
except DeviceError:
    print("none", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(("gpus", "ids", "winners"), [(1, "0,1,2", 3), (2, "0,1,2", 1), (0.5, "0,1", 4)])
def test_processes_that_claim_at_once(tmp_path: Path, gpus: float, ids: str, winners: int) -> None:
    """Each GPU goes to as many as it has room for. What killed processes held is free again."""
    command = [sys.executable, "-c", CLAIM, str(gpus), ids, str(tmp_path)]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) for _ in range(6)
    ]
    try:
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
        found = [process.stdout.readline().split() for process in processes if process.stdout is not None]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    won = [claimed for claimed in found if claimed != ["none"]]
    assert len(won) == winners
    taken = Counter(gpu for claimed in won for gpu in claimed)
    assert all(count <= 1 / min(1, gpus) for count in taken.values())
    assert GpuClaim(len(ids.split(",")), ids.split(","), tmp_path).ids == ids.split(",")


def test_a_fork_keeps_the_claim_of_its_parent(tmp_path: Path) -> None:
    """It may be a process of vLLM, which still uses the GPU."""
    release, hold = os.pipe()
    child = os.fork()
    if child == 0:
        claim = GpuClaim(1, ["0"], tmp_path)
        if os.fork() == 0:
            os.close(hold)
            os.read(release, 1)
        os._exit(0 if claim.ids else 1)
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(DeviceError):
        GpuClaim(1, ["0"], tmp_path)
    os.close(hold)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            GpuClaim(1, ["0"], tmp_path)
            return
        except DeviceError:
            time.sleep(0.05)
    pytest.fail("the claim of processes that have ended is still there")


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
        assert [stat.S_IMODE(file.stat().st_mode) for file in shared.iterdir()] == [0o600]
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
    (shared / "0@1.000000@link").symlink_to(tmp_path / "precious")
    (shared / "0@1.000000@hard").hardlink_to(tmp_path / "precious")
    os.mkfifo(shared / "0@1.000000@fifo")  # doesn't block
    (shared / "README").touch()
    claim = GpuClaim(1, ["0"])
    assert claim.ids == ["0"]
    assert (tmp_path / "precious").read_text() == "precious"
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(DeviceError):
        GpuClaim(2, ["0", "1"])
    assert len(os.listdir("/proc/self/fd")) == before
