"""The policies by their names."""

from __future__ import annotations

from benchmarks.cluster.policies.base import Policy
from benchmarks.cluster.policies.daft import DaftRouter
from benchmarks.cluster.policies.live import Live
from benchmarks.cluster.policies.sglang import SGLangRouter
from benchmarks.cluster.policies.static import Planned, Random, Sorted

POLICIES: dict[str, type[Policy]] = {
    "random": Random,
    "sorted": Sorted,
    "daft": DaftRouter,
    "sglang": SGLangRouter,
    "live": Live,
    "planned": Planned,
}
