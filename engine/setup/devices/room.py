"""Whether this machine has room for the engines asked for, before any of them is started."""

from __future__ import annotations

from daft_vllm.engine.setup.devices.claims import none_visible
from daft_vllm.engine.setup.devices.driver import visible_gpus
from daft_vllm.engine.setup.openmp import divided_cores
from daft_vllm.errors import DeviceError
from daft_vllm.wording import counted

_ROUNDING = 1e-6


def engines_on(there: float, gpus: float) -> int:
    """Return how many engines with ``gpus`` GPUs each fit on a machine that has ``there``. A share is of one GPU."""
    if gpus >= 1:
        return int(there / gpus + _ROUNDING)
    return int(there + _ROUNDING) * int(1 / gpus + _ROUNDING)


def check_room_here(engines: int, gpus: float) -> None:
    """Raise ``DeviceError`` if this machine has too few GPUs for the engines, or on a CPU too few cores.

    GPUs count that are visible to this process, whether they are free or not.

    Args:
        engines: how many.
        gpus: GPUs of each; 0 for the CPU, or a share of one.
    """
    if not gpus:
        divided_cores(engines)
        return
    ids = visible_gpus()
    room = engines_on(len(ids), gpus)
    if not ids:
        raise none_visible(gpus)
    if room < engines:
        raise DeviceError(too_many(engines, gpus, f"{counted(len(ids), 'is', 'are')} visible here", room))


def too_many(engines: int, gpus: float, there: str, room: int) -> str:
    """Return what is said if there are too few GPUs.

    Args:
        engines: how many are asked for.
        gpus: GPUs of each.
        there: how many GPUs there are, and where.
        room: how many engines fit.
    """
    one = f"{gpus:g} {'GPU' if gpus <= 1 else 'GPUs'}"
    if engines == 1 or room < 1:
        return f"an engine needs {one}, and {there}: lower gpus."
    return (
        f"{engines} engines of {one} need {counted(engines * gpus, 'GPU')}, and {there}: pass max_concurrency={room}, "
        'or "auto".'
    )
