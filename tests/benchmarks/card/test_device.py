"""Which card a suite takes."""

from __future__ import annotations

import pytest

from benchmarks.card.stages.device import WrongDevice, checked, find_device
from benchmarks.suite.suites import suite
from daft_vllm.engine.setup.devices.driver import GpuState
from daft_vllm.errors import DeviceError

GIB = 1 << 30


def gpu(name: str, gib: float, free: float | None = None) -> GpuState:
    return GpuState("0", name, int(gib * GIB), int((gib if free is None else free) * GIB), (9, 0), "580.65.06")


@pytest.mark.parametrize(
    ("name", "card", "gib", "known"),
    [
        ("h200", "NVIDIA H200", 140.4, "H200"),
        ("h100", "NVIDIA H100 80GB HBM3", 79.6, "H100"),
        ("h100", "NVIDIA H100 PCIe", 79.6, "H100-PCIE"),
        ("a100", "NVIDIA A100-SXM4-40GB", 39.6, "A100-40"),
        ("a100", "NVIDIA A100 80GB PCIe", 79.3, "A100-80-PCIE"),
        ("l4", "NVIDIA L4", 22.5, "L4"),
    ],
)
def test_a_suite_takes_its_card(name: str, card: str, gib: float, known: str) -> None:
    found = checked(suite(name), [gpu(card, gib)])
    assert (found.name, found.card, found.driver) == (card, known, "580.65.06")


@pytest.mark.parametrize(
    ("name", "card", "gib", "says"),
    [
        ("h100", "NVIDIA H200", 140.4, "this one is NVIDIA H200; run --suite h200"),
        ("l4", "NVIDIA L40S", 44.5, "no suite is for this card"),
        ("h200", "NVIDIA GH200 480GB", 94.5, "no suite is for this card"),
        ("h200", "NVIDIA Z9", 10, "no suite is for this card"),
    ],
)
def test_another_card_is_refused(name: str, card: str, gib: float, says: str) -> None:
    with pytest.raises(WrongDevice, match=says):
        checked(suite(name), [gpu(card, gib)])


def test_a_card_that_is_in_use_is_refused() -> None:
    with pytest.raises(DeviceError, match="end the process"):
        checked(suite("h200"), [gpu("NVIDIA H200", 140.4, free=20)])


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.card.stages.device.gpu_states", lambda ids: [])
    with pytest.raises(WrongDevice, match="--suite h200 needs a GPU"):
        find_device(suite("h200"))
    assert find_device(suite("cpu")).card == ""
