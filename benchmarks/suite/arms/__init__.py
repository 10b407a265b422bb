"""The arms: daft-vllm, its peers, and an oracle, one file each behind the ``Arm`` protocol."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from benchmarks.suite.arms.base import Arm, EngineSetting, Measured, NotExpressible

__all__ = ["ARMS", "Arm", "ArmEntry", "EngineSetting", "Measured", "NotExpressible", "create_arm"]


@dataclass(frozen=True)
class ArmEntry:
    """What the runner knows of an arm without importing it.

    Args:
        factory: ``module:name`` of what is called with the arm's name and an ``EngineSetting``.
        keeps_engine: whether the engine outlives a query. Where it doesn't, a warm-up would warm nothing.
        only: the workloads that the arm exists for. Empty: all.
        environment: variables of its process, on top of the suite's.
    """

    factory: str
    keeps_engine: bool = True
    only: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


ARMS: dict[str, ArmEntry] = {
    "oracle-inproc": ArmEntry("oracle:Oracle", environment={"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}),
    "oracle-proc": ArmEntry("oracle:Oracle", environment={"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}),
    "naive-64": ArmEntry("naive:Naive"),
    "naive-all": ArmEntry("naive:Naive"),
    "daft-provider": ArmEntry("daft_provider:DaftProvider"),
    # How a table comes matters where rows that are apart share what the cache can't hold.
    "daft-provider-small": ArmEntry("daft_provider:DaftProvider", only=("pressure",)),
    # Ray's workers run at niceness 15: whatever else the machine does would cost this arm more than the others.
    "ray-data": ArmEntry("ray_data:RayData", keeps_engine=False, environment={"RAY_worker_niceness": "0"}),
    "offline-loop": ArmEntry("offline_loop:OfflineLoop"),
    "ours": ArmEntry("ours:Ours", keeps_engine=False),
    "ours-stream": ArmEntry("ours:OursStream"),
    "ours-stream-64": ArmEntry("ours:OursStream"),
    "ours-stream-small": ArmEntry("ours:OursStream", only=("pressure",)),
    # An empty variable counts as the user's own, and is kept.
    "ours-stream-plain": ArmEntry("ours:OursStream", environment={"GLIBC_TUNABLES": ""}),
    "ours-shared": ArmEntry("ours:OursStream", only=("table",)),
}


def create_arm(name: str, setting: EngineSetting) -> Arm:
    """Return the arm of that name; nothing is loaded yet.

    Raises:
        KeyError: there is no such arm.
    """
    module, _, factory = ARMS[name].factory.partition(":")
    return cast(Arm, getattr(importlib.import_module(f"benchmarks.suite.arms.{module}"), factory)(name, setting))
