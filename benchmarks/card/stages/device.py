"""Which card is here, and whether it is the one that the suite is for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.suite.runner import device
from benchmarks.suite.suites import Suite
from daft_vllm.engine.setup.devices.driver import GpuState, check_free, driver_problem, gpu_states, visible_gpus
from daft_vllm.model_configs.cards import card_named


class WrongDevice(Exception):
    """The suite can't run here; the message says why and what to do."""


@dataclass(frozen=True)
class Device:
    """What the benchmark runs on.

    Args:
        name: what the driver calls the card, or the CPU's name.
        card: its name in ``model_configs/overlays/cards.toml``. Empty: a CPU.
        total: bytes of the card's memory. 0: a CPU.
        free: bytes of it that no process uses.
        driver: version of the driver. Empty: a CPU.
    """

    name: str
    card: str = ""
    total: int = 0
    free: int = 0
    driver: str = ""


def find_device(suite: Suite) -> Device:
    """Return the device that the suite runs on here. A GPU is looked up through NVML: no CUDA is started.

    Raises:
        WrongDevice: there is no GPU, or another card than the suite's.
        DeviceError: a process holds memory that the suite takes.
    """
    if not suite.gpus:
        return Device(device(0))
    ids = visible_gpus()
    states = gpu_states(ids[:1]) if ids else []
    if not states:
        problem = driver_problem() or "CUDA_VISIBLE_DEVICES hides every GPU"
        raise WrongDevice(f"--suite {suite.name} needs a GPU: {problem}. --suite cpu runs without one.")
    return checked(suite, states)


def checked(suite: Suite, states: Sequence[GpuState]) -> Device:
    """Return the first of these GPUs, as the suite's card.

    Raises:
        WrongDevice: it is another card.
        DeviceError: a process holds memory that the suite takes.
    """
    state = states[0]
    card = card_named(state.name, state.total)
    kind = suite_of_card(card.name) if card else None
    if card is None or kind != suite.name:
        known = (suite_of_card(card.name) or "") if card else ""
        advice = f"run --suite {known}" if known in ("l4", "a100", "h100", "h200") else "no suite is for this card"
        raise WrongDevice(f"--suite {suite.name} is for another card: this one is {state.name}; {advice}.")
    check_free(states[:1], float(suite.engine_args["gpu_memory_utilization"]))
    return Device(state.name, card.name, state.total, state.free, state.driver)


def suite_of_card(card: str) -> str:
    """Return the name of the suite for a card: ``"h100"`` for ``"H100-PCIE"``."""
    return card.partition("-")[0].partition(" ")[0].lower()
