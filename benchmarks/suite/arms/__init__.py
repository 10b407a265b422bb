"""The arms: daft-vllm, its peers, and an oracle, one file each behind the ``Arm`` protocol."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, cast

from benchmarks.suite.arms.base import Arm, EngineSetting, Measured, NotExpressible

__all__ = ["ARMS", "Arm", "ArmEntry", "EngineSetting", "Measured", "NotExpressible", "arms_of", "create_arm"]


@dataclass(frozen=True)
class ArmEntry:
    """What the runner knows about an arm without importing it.

    Args:
        factory: ``module:name`` of a callable that takes the arm's name and an ``EngineSetting``.
        keeps_engine: whether the engine stays after a query. If it doesn't, a warm-up would have no effect.
        only: the workloads that the arm runs. Empty: all.
        environment: environment variables of its process, in addition to the suite's.
        kind: whether it is daft-vllm, a peer (the report compares each arm with each peer), or an oracle.
        cold: whether it is also timed as a whole script, the load included.
    """

    factory: str
    keeps_engine: bool = True
    only: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    kind: Literal["ours", "peer", "oracle"] = "peer"
    cold: bool = False


ARMS: dict[str, ArmEntry] = {
    "oracle-inproc": ArmEntry("oracle:Oracle", kind="oracle", environment={"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}),
    "oracle-proc": ArmEntry("oracle:Oracle", kind="oracle", environment={"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}),
    "naive-64": ArmEntry("naive:Naive"),
    "naive-all": ArmEntry("naive:Naive"),
    "daft-provider": ArmEntry("daft_provider:DaftProvider", cold=True),
    # Whether a table comes in pieces matters if rows far apart share more prefixes than fit into the cache.
    "daft-provider-small": ArmEntry("daft_provider:DaftProvider", only=("pressure",)),
    # Ray's workers run at niceness 15: any other load of the machine would slow this arm more than the others.
    "ray-data": ArmEntry("ray_data:RayData", keeps_engine=False, environment={"RAY_worker_niceness": "0"}),
    "offline-loop": ArmEntry("offline_loop:OfflineLoop"),
    "ours": ArmEntry("ours:Ours", kind="ours", keeps_engine=False, cold=True),
    "ours-stream": ArmEntry("ours:OursStream", kind="ours", cold=True),
    "ours-stream-64": ArmEntry("ours:OursStream", kind="ours"),
    "ours-stream-small": ArmEntry("ours:OursStream", kind="ours", only=("pressure",)),
    # daft-vllm takes an empty variable as the user's own choice, and keeps it.
    "ours-stream-plain": ArmEntry("ours:OursStream", kind="ours", environment={"GLIBC_TUNABLES": ""}),
    "ours-shared": ArmEntry("ours:OursStream", kind="ours", only=("table",)),
}


def arms_of(kind: Literal["ours", "peer", "oracle"]) -> tuple[str, ...]:
    """Return the names of the arms of a kind."""
    return tuple(name for name, entry in ARMS.items() if entry.kind == kind)


def create_arm(name: str, setting: EngineSetting) -> Arm:
    """Return the arm of that name, without loading anything.

    Raises:
        KeyError: there is no such arm.
    """
    module, _, factory = ARMS[name].factory.partition(":")
    return cast(Arm, getattr(importlib.import_module(f"benchmarks.suite.arms.{module}"), factory)(name, setting))
