"""Which GPUs there are, and what the driver says of them, without importing torch or CUDA."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from daft_vllm.errors import DeviceError

logger = logging.getLogger("daft_vllm")
MASK = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
"""Together with the mask, this variable says which GPUs a process sees: what the numbers in the mask mean."""
_BY_NAME = re.compile(r"(GPU|MIG)-\S+")


def visible_gpus(env: Mapping[str, str] = os.environ, device_folder: Path = Path("/dev")) -> list[str]:
    """Return the ids of the GPUs that this process may use: the mask in ``env`` if set, else all, by CUDA's numbers.

    CUDA counts what a process can see from 0, whatever the names of the files in ``/dev``: in a container that has
    ``/dev/nvidia3`` alone, the GPU is number 0.
    """
    mask = env.get(MASK)
    if mask is None:
        known = _count()
        return [str(number) for number in range(_device_files(device_folder) if known is None else known)]
    parts = [part.strip() for part in mask.split(",")]
    known = _count() if any(map(str.isdigit, parts)) else None
    ids: list[str] = []
    for part in parts:
        # CUDA stops at the first id that is not valid: "-1" hides everything after it, and "all" is none.
        if not (_BY_NAME.fullmatch(part) or (part.isdigit() and (known is None or int(part) < known))):
            break
        if part not in ids:
            ids.append(part)
    return ids


class GpuState(NamedTuple):
    """What the driver reports about a GPU.

    Attributes:
        id: its id, as in ``CUDA_VISIBLE_DEVICES``.
        name: what the driver calls it.
        total: bytes of its memory.
        free: bytes of its memory that no process uses.
        capability: its compute capability.
        driver: the driver's version.
        uuid: its name that no other GPU has. Empty: unknown.
    """

    id: str
    name: str
    total: int
    free: int
    capability: tuple[int, int]
    driver: str
    uuid: str = ""


def gpu_states(ids: Sequence[str]) -> list[GpuState]:
    """Return what the driver reports about these GPUs. Empty: there is no driver, or it doesn't know one of them."""
    try:
        with _driver() as nvml:
            version = _text(nvml.nvmlSystemGetDriverVersion())
            return [_state(nvml, gpu, version) for gpu in ids]
    except Exception as e:
        logger.debug("NVML reports nothing about these GPUs: %s", e)
        return []


def driver_problem() -> str | None:
    """Return why the driver shows no GPU. None: it shows some."""
    try:
        with _driver() as nvml:
            if nvml.nvmlDeviceGetCount():
                return None
            return f"NVIDIA's driver {_text(nvml.nvmlSystemGetDriverVersion())} sees no GPU"
    except ImportError:
        return "nvidia-ml-py, which asks NVIDIA's driver, is not installed: it comes with daft-vllm[gpu]"
    except Exception as e:
        return f"NVIDIA's driver can't be asked ({e})"


def check_free(states: Sequence[GpuState], utilization: float) -> None:
    """Raise ``DeviceError`` if a GPU has less free memory than ``gpu_memory_utilization`` takes."""
    for state in states:
        wanted = state.total * utilization
        if state.free < wanted:
            raise DeviceError(
                f"GPU {state.id} ({state.name}) has {state.free / 2**30:.1f} of {state.total / 2**30:.1f} GiB free, "
                f"and gpu_memory_utilization={utilization:g} takes {wanted / 2**30:.1f}: end the process "
                "that uses the rest (nvidia-smi names it), or lower gpu_memory_utilization in engine_args."
            )


@contextlib.contextmanager
def _driver() -> Iterator[Any]:
    """Give NVML, the library of NVIDIA's driver. Raises ``ImportError``, or what NVML raises without a driver."""
    import pynvml  # type: ignore[import-not-found,unused-ignore]  # comes with vLLM for GPUs

    pynvml.nvmlInit()
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def _count() -> int | None:
    """Return how many GPUs the driver shows. None: it can't be asked."""
    try:
        with _driver() as nvml:
            return int(nvml.nvmlDeviceGetCount())
    except Exception as e:
        logger.debug("NVML doesn't count the GPUs: %s", e)
        return None


def _device_files(folder: Path) -> int:
    return sum(re.fullmatch(r"nvidia\d+", path.name) is not None for path in folder.glob("nvidia*"))


def _state(nvml: Any, gpu: str, driver: str) -> GpuState:
    handle = _handle(nvml, gpu)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    capability = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    name, uuid = _text(nvml.nvmlDeviceGetName(handle)), _text(nvml.nvmlDeviceGetUUID(handle))
    return GpuState(gpu, name, memory.total, memory.free, tuple(capability), driver, uuid)


def _handle(nvml: Any, gpu: str) -> Any:
    if gpu.isdigit():
        return nvml.nvmlDeviceGetHandleByIndex(int(gpu))
    if gpu.startswith("GPU-"):  # the beginning of a UUID is enough for CUDA, if no other GPU's begins so
        handles = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
        found = [handle for handle in handles if _text(nvml.nvmlDeviceGetUUID(handle)).startswith(gpu)]
        if len(found) == 1:
            return found[0]
    return nvml.nvmlDeviceGetHandleByUUID(gpu)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
