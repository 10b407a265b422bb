"""Which GPUs there are, and which of them an engine may take, without importing torch or CUDA."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from daft_vllm.engine.setup.environment import environment_variables
from daft_vllm.errors import DeviceError
from daft_vllm.folders import own_folder

logger = logging.getLogger("daft_vllm")
MASK = "CUDA_VISIBLE_DEVICES"


def visible_gpus(env: Mapping[str, str] = os.environ, device_folder: Path = Path("/dev")) -> list[str]:
    """Return the ids of the GPUs that this process may use: the mask in ``env`` if set, else the driver's devices."""
    mask = env.get(MASK)
    if mask is not None:
        # CUDA stops at the first id that is not valid: "-1" hides everything after it.
        ids = []
        for part in mask.split(","):
            if not part.strip() or part.strip() == "-1":
                break
            ids.append(part.strip())
        return ids
    numbers = [re.fullmatch(r"nvidia(\d+)", path.name) for path in device_folder.glob("nvidia*")]
    return [str(n) for n in sorted(int(match.group(1)) for match in numbers if match)]


class GpuState(NamedTuple):
    """What the driver reports about a GPU.

    Attributes:
        id: its id, as in ``CUDA_VISIBLE_DEVICES``.
        name: what the driver calls it.
        total: bytes of its memory.
        free: bytes of its memory that no process uses.
        capability: its compute capability.
        driver: the driver's version.
    """

    id: str
    name: str
    total: int
    free: int
    capability: tuple[int, int]
    driver: str


def gpu_states(ids: Sequence[str]) -> list[GpuState]:
    """Return what the driver reports about these GPUs. Empty: there is no driver, or an id names a part of a GPU."""
    try:
        import pynvml  # type: ignore[import-not-found,unused-ignore]  # comes with vLLM for GPUs

        pynvml.nvmlInit()
    except Exception:  # no driver, no package
        return []
    states = []
    try:
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        for gpu in ids:
            by_index = gpu.isdigit()
            handle = pynvml.nvmlDeviceGetHandleByIndex(int(gpu)) if by_index else pynvml.nvmlDeviceGetHandleByUUID(gpu)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            capability = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
            name = _text(pynvml.nvmlDeviceGetName(handle))
            states.append(GpuState(gpu, name, memory.total, memory.free, tuple(capability), driver))
    except Exception as e:
        logger.debug("NVML reports nothing about these GPUs: %s", e)
        return []
    finally:
        pynvml.nvmlShutdown()
    return states


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


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


class GpuClaim:
    """GPUs that this process takes, until it ends or ``release`` is called.

    Daft's native runner starts several processes, and gives none of them a device of its own: all would load the model
    onto GPU 0. Here each process takes free GPUs instead. It locks files, which the kernel unlocks when it ends.

    Args:
        gpus: how many; a share below 1 takes one of ``floor(1 / gpus)`` places on a GPU.
        ids: the GPUs to choose from.
        folder: where the lock files are. Processes that share GPUs have to use the same folder. Default:
            ``daft-vllm-gpus-UID`` in the temporary folder. Only its user can use it, and links are not followed.

    Raises:
        DeviceError: too few are free, or somebody else has made the folder.
    """

    def __init__(self, gpus: float, ids: list[str], folder: Path | None = None) -> None:
        folder = folder or Path(tempfile.gettempdir()) / f"daft-vllm-gpus-{os.geteuid()}"
        places = int(1 / gpus) if gpus < 1 else 1
        wanted = 1 if gpus < 1 else int(gpus)
        self.ids: list[str] = []
        self._files: list[int] = []
        try:
            opened = own_folder(folder)
            try:
                for gpu in ids:
                    for place in range(places):
                        if len(self.ids) < wanted and self._lock(f"{gpu}.{place}".replace("/", "_"), opened):
                            self.ids.append(gpu)
                            break
            finally:
                os.close(opened)
        except OSError as e:
            self.release()
            raise DeviceError(
                f"the folder {folder}, in which processes lock GPUs, can't be used ({e.strerror}: {e.filename}): "
                "remove it, or set TMPDIR to a folder of your own, the same for all processes."
            ) from e
        if len(self.ids) < wanted:
            free = len(self.ids)
            self.release()
            if not ids:
                raise DeviceError(
                    f"an engine needs {gpus:g} GPU(s), and none is visible here: use gpus=0 for the CPU, or look "
                    f"whether nvidia-smi lists one that {MASK} hides."
                )
            raise DeviceError(
                f"an engine needs {gpus:g} GPU(s), and {free} of the {len(ids)} visible here are free. Lower "
                "max_concurrency or gpus, or let the query that uses them finish first (two prompt() columns in one "
                "query are two engines: collect() in between)."
            )

    def _lock(self, name: str, folder: int) -> bool:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.open(name, flags, 0o600, dir_fd=folder)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        except BaseException:
            os.close(file)
            raise
        self._files.append(file)
        return True

    def visible(self) -> contextlib.AbstractContextManager[None]:
        """Let processes that are started inside the ``with`` block see only the claimed GPUs."""
        return environment_variables({MASK: ",".join(self.ids)})

    def release(self) -> None:
        """Give the GPUs back."""
        for file in self._files:
            os.close(file)
        self._files.clear()
        self.ids.clear()
