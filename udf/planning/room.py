"""How many engines there are, and whether there is room for them: on this machine, or on the nodes of a Ray cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from daft_vllm.engine.setup.devices.driver import visible_gpus
from daft_vllm.engine.setup.devices.room import check_room_here, engines_on
from daft_vllm.errors import OptionError
from daft_vllm.udf.preflight.cluster import check_room_in_cluster, engines_in_cluster, need_of, nodes_of_cluster
from daft_vllm.udf.preflight.connection import on_ray


def engines_of(max_concurrency: int | str, gpus: float, ray_options: Mapping[str, Any] | None = None) -> int:
    """Return how many engines there are in all.

    Args:
        max_concurrency: how many the user asked for. ``"auto"``: as many as there are GPUs for, one without.
        gpus: GPUs of each engine.
        ray_options: as in ``prompt()``.

    Raises:
        OptionError: there are GPUs for none.
        DeviceError: no Ray cluster answers.
    """
    if max_concurrency != "auto":
        return int(max_concurrency)
    if not gpus:
        return 1
    if on_ray():
        nodes = nodes_of_cluster()
        engines = engines_in_cluster(need_of(gpus, ray_options), nodes)
        there, where = sum(node.get("GPU", 0.0) for node in nodes), "are in the Ray cluster"
    else:
        there, where = float(len(visible_gpus())), "are visible here"
        engines = engines_on(there, gpus)
    if engines < 1:
        raise OptionError(f"max_concurrency='auto': an engine needs {gpus:g} GPUs, and {there:g} {where}: lower gpus.")
    return engines


def check_room(
    engines: int, gpus: float, ray_options: Mapping[str, Any] | None = None, *, stored: bool = False
) -> None:
    """Raise ``DeviceError`` if there is no room for the engines.

    Args:
        engines: how many.
        gpus: GPUs of each.
        ray_options: as in ``prompt()``.
        stored: whether there is a store. If it has all answers, no engine is started on this machine. So it is checked
            only then, before one is. On Ray Daft starts its actors in any case.
    """
    if on_ray():
        check_room_in_cluster(engines, need_of(gpus, ray_options))
    elif not stored:
        check_room_here(engines, gpus)
