"""Checks of a machine: its GPUs, its shared memory, its cluster, and its vLLM."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from daft_vllm.engine.patches.registry import states, unfitting, vllm_version
from daft_vllm.engine.setup.devices.build import check_build
from daft_vllm.engine.setup.devices.claims import GpuClaim
from daft_vllm.engine.setup.devices.driver import check_free, gpu_states, visible_gpus
from daft_vllm.errors import DeviceError
from daft_vllm.model_configs.cards import GIB, Card
from daft_vllm.model_configs.memory import utilization_of
from daft_vllm.udf.preflight.architecture import check_card_type
from daft_vllm.udf.preflight.model import Model
from daft_vllm.udf.preflight.report import Check
from daft_vllm.wording import counted


def check_gpus_here(gpus: float, engines: int, model: Model) -> str | Check:
    """Return which GPUs of this machine the engines get.

    Raises:
        DeviceError: too few are free.
        OptionError: the installed vLLM is built for other devices.
        ModelError: a card can't compute in the model's type, or with its quantized weights.
    """
    check_build(gpus)
    visible = visible_gpus()
    if not gpus:
        if visible:
            seen = counted(len(visible), "GPU is", "GPUs are")
            return Check("GPUs", "warning", f"{seen} visible, and gpus=0 doesn't use any")
        return f"none: {'the model runs' if engines == 1 else f'{engines} engines run'} on the CPU"
    claims: list[GpuClaim] = []
    try:
        for number in range(engines):
            try:
                claims.append(GpuClaim(gpus, visible))
            except DeviceError as e:
                few = f"{number} of {engines} engines found theirs. Lower max_concurrency or gpus."
                raise DeviceError(
                    f"{counted(engines, 'engine')} with {counted(gpus, 'GPU')} each {'is' if engines == 1 else 'are'} "
                    f"wanted, {counted(len(visible), 'GPU is', 'GPUs are')} visible "
                    f"({os.environ.get('CUDA_VISIBLE_DEVICES') or 'no mask'}): {few if number else e}"
                ) from e
        states = gpu_states([gpu for claim in claims for gpu in claim.ids])
        check_free(states, utilization_of(model.args, gpus))
        for state in states:
            check_card_type(model, state.name, state.capability)
        names = ", ".join(f"{s.name} with {s.free / 2**30:.1f} GiB free, driver {s.driver}" for s in states[:1])
        several = f"{engines} engines with {counted(gpus, 'GPU')} each: " if engines > 1 else ""
        return (
            f"{several}{counted(engines * gpus, 'GPU')} of {len(visible)} visible: free{': ' if names else ''}{names}"
        )
    finally:
        for claim in claims:
            claim.release()


def planned_gpus(gpus: float, engines: int, card: Card) -> str:
    """Return how many cards engines on another machine take."""
    return f"{counted(engines, 'engine')} with {gpus:g} x {card.name} each: {gpus * engines:g} x {card.name} in all"


def check_shared_memory(gpus: float, where: str = "") -> str | Check:
    """Return how much shared memory this machine has. ``where`` goes before it."""
    name, place = "shared memory", Path("/dev/shm")
    if not place.is_dir():
        return Check(name, "skipped", f"there is no {place}")
    free = shutil.disk_usage(place).free
    if gpus > 1 and free < GIB:
        return Check(
            name,
            "warning",
            f"{where}{free / 2**20:.0f} MiB free in {place}, where the processes of {gpus:g} GPUs exchange tensors: in "
            "Docker, use --ipc=host or --shm-size=8g",
        )
    return f"{where}{free / GIB:.1f} GiB free"


def check_patches(gpus: float, adapters: Mapping[str, str] | None, *, reproducible: bool = False) -> str | Check:
    """Return how many of daft-vllm's changes of vLLM fit the installed vLLM, and which are left out.

    Raises:
        EngineStartError: no engine can run without one that doesn't fit.
    """
    found = states()
    left_out = unfitting(found, cpu=not gpus, adapters=bool(adapters), reproducible=reproducible)
    used = [one for one in found if one.patch.is_used(cpu=not gpus, reproducible=reproducible)]
    if not left_out:
        return f"vLLM {vllm_version()}: all {len(used)} changes of vLLM fit"
    fitting = f"vLLM {vllm_version()}: {len(used) - len(left_out)} of {len(used)} changes of vLLM fit"
    listed = "; ".join(f"{patch.name} is left out ({problem}): {patch.without}" for patch, problem in left_out)
    return Check("changes of vLLM", "warning", f"{fitting}; {listed}")
