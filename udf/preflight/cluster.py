"""Whether a Ray cluster has room for the engines asked for, before any of them is started.

Daft 0.7 starts each engine as a Ray actor with its GPUs and one CPU (``start_udf_actors`` in
``daft/execution/ray_actor_pool_udf.py``). Nothing else of Daft's holds CPUs or GPUs in Ray's account while a query
runs. If not all of them fit, Daft waits for ``actor_udf_ready_timeout`` (120 seconds), and goes on with those that run.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import daft

from daft_vllm.engine.setup.devices.room import engines_on
from daft_vllm.errors import DeviceError
from daft_vllm.udf.preflight.connection import join_cluster
from daft_vllm.wording import counted

logger = logging.getLogger("daft_vllm")

GROWS = "DAFT_VLLM_RAY_GROWS"
"""The variable that says, with 1, that nodes will join the cluster: its autoscaler starts them, or they are booting.
Ray has no public way to ask that: its own libraries read a configuration that only some clusters report."""
DAFT_CPUS = 1.0
"""CPUs that Daft asks for each actor, if nothing else is asked for (``num_cpus().unwrap_or(1.0)`` in
``src/daft-distributed/src/pipeline_node/actor_udf.rs``, Daft's repository)."""
_ROUNDING = 1e-6
_MOST_KINDS = 4
"""Kinds of nodes that a message lists."""

Resources = Mapping[str, float]


def need_of(gpus: float, ray_options: Mapping[str, Any] | None = None) -> Resources:
    """Return what Ray has to find on one node for an engine.

    Args:
        gpus: its GPUs.
        ray_options: as in ``prompt()``.
    """
    given = ray_options or {}
    need = {"GPU": gpus, "CPU": given.get("num_cpus", DAFT_CPUS), **(given.get("resources") or {})}
    return {name: float(much) for name, much in need.items() if much}


def nodes_of_cluster() -> list[Resources]:
    """Return what each living node has in all, free or not."""
    join_cluster()
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def engines_in_cluster(need: Resources, nodes: Sequence[Resources]) -> int:
    """Return how many engines there is room for. Each is on one node."""
    return sum(_room_on(node, need) for node in nodes)


def check_room_in_cluster(engines: int, need: Resources) -> str:
    """Return what the engines take of the cluster.

    Raises:
        DeviceError: there is no room for all of them. Where nodes may join, by ``GROWS``, this is a warning, unless no
            node has room for one: Daft then refuses the query.
    """
    nodes = nodes_of_cluster()
    room = engines_in_cluster(need, nodes) if need else engines
    if room >= engines:
        return ", ".join(f"{engines * much:g} of {_have(nodes, name)}" for name, much in need.items())
    grows = os.environ.get(GROWS, "").strip().lower() in ("1", "true")
    working = [node for node in nodes if node.get("CPU") or node.get("GPU")]
    if not room:
        has = f"the cluster has {_listed(working, need)}" if working else "the cluster's nodes have none"
        wait = " Daft starts no engine before one fits: keep one such node running." if grows else ""
        raise DeviceError(
            f"an engine needs {_words(need)} of one node, and {has}: lower gpus, or add a larger node.{wait}"
        )
    short = [name for name, much in need.items() if engines * much > _total(nodes, name) + _ROUNDING]
    if short:
        total = " and ".join(_amount(engines * need[name], name) for name in short)
        have = " and ".join(_have(nodes, name) for name in short)
        seen = f"need {total}; the cluster has {have} on {counted(len(working), 'node')}"
    else:
        seen = f"need {_words(need)} of one node each; the cluster has {_listed(working, need)}, room for {room}"
    said = f"{engines} engines of {_words({name: need[name] for name in short or need})} {seen}"
    if grows:
        logger.warning(
            "%s. Daft waits up to %s s for nodes, and goes on with the engines that run then: "
            "daft.set_execution_config(actor_udf_ready_timeout=...) changes that.",
            said,
            daft.context.get_context().daft_execution_config.actor_udf_ready_timeout,
        )
        return said
    auto = ', or "auto"' if need.get("GPU") else ""
    raise DeviceError(f"{said}: pass max_concurrency={room}{auto}. If more nodes will join it, set {GROWS}=1.")


def check_cluster(gpus: float, engines: int, ray_options: Mapping[str, Any] | None = None) -> str:
    """Return what the engines take of the Ray cluster, for a report. Raises ``DeviceError`` if there is no room."""
    import ray

    if not ray.is_initialized():
        return "Ray is not connected yet"
    return check_room_in_cluster(engines, need_of(gpus, ray_options))


def _room_on(node: Resources, need: Resources) -> int:
    def fit(name: str, much: float) -> int:
        there = node.get(name, 0.0)
        return engines_on(there, much) if name == "GPU" else int(there / much + _ROUNDING)

    return min(fit(name, much) for name, much in need.items())


def _total(nodes: Sequence[Resources], name: str) -> float:
    return sum(node.get(name, 0.0) for node in nodes)


def _amount(much: float, name: str) -> str:
    noun = name if name in ("GPU", "CPU") else f"of {name!r}"
    return f"{much:g} {noun}" if 0 < much <= 1 or noun != name else f"{much:g} {noun}s"


def _have(nodes: Sequence[Resources], name: str) -> str:
    return _amount(_total(nodes, name), name)


def _words(need: Resources) -> str:
    return " and ".join(_amount(much, name) for name, much in need.items())


def _listed(nodes: Sequence[Resources], need: Resources) -> str:
    """Return the nodes, as many together as have the same: ``2 nodes with 3 GPUs and 8 CPUs``."""
    kinds = Counter(" and ".join(_amount(node.get(name, 0.0), name) for name in need) for node in nodes)
    most = [f"{counted(number, 'node')} with {has}" for has, number in kinds.most_common(_MOST_KINDS)]
    return ", ".join([*most, *(["others"] if len(kinds) > _MOST_KINDS else [])])
