"""Predicts how vLLM will bind the threads of its core on a CPU, before vLLM is imported."""

from __future__ import annotations

import itertools
import os
import platform
import re
import subprocess
from glob import glob

from daft_vllm.engine.setup.sources import package_folder
from daft_vllm.errors import DeviceError

BIND = "VLLM_CPU_OMP_THREADS_BIND"
"""vLLM's variable for the CPUs of the model's threads."""


def openmp_environment() -> dict[str, str] | None:
    """Return the variables with which vLLM 0.32 will start a core that has the model in its own process.

    vLLM itself computes them only after it is imported and configured (``CpuPlatform.check_and_update_config`` for
    ``LD_PRELOAD``, ``OMPProcessManager`` for the rest).

    Returns:
        None if they can't be predicted: the user has set variables that change them, or this code doesn't know the kind
        of machine.
    """
    preload = _preload()
    cpus = _cpus()
    if preload is None or cpus is None:
        return None
    threads = {"OMP_NUM_THREADS": str(len(cpus))}
    if "libgomp" in preload:
        threads["GOMP_CPU_AFFINITY"] = " ".join(map(str, cpus))
    else:
        threads |= {"OMP_PLACES": f"{{{','.join(map(str, cpus))}}}", "OMP_PROC_BIND": "true"}
    return threads | ({"LD_PRELOAD": preload} if preload else {})


def _preload() -> str | None:
    """Return the value of ``LD_PRELOAD``: the user's libraries, torch's OpenMP, vLLM's allocator."""
    preload = os.environ.get("LD_PRELOAD", "")
    if "libiomp" in preload or "libomp" in preload:
        return None
    torch, vllm = package_folder("torch"), package_folder("vllm")
    if torch is None or vllm is None:
        return None
    if "libgomp" not in preload:
        found = [*glob(f"{torch.parent}/torch.libs/libgomp*.so*"), *glob(f"{torch}/lib/libgomp*.so*")]
        preload = ":".join(filter(None, [preload, *found[:1]]))
    if "libtcmalloc" not in preload:
        found = glob(f"{vllm}/libs/libtcmalloc_minimal*.so*") or glob(f"{vllm}/libs/libtcmalloc.so*")
        preload = ":".join(filter(None, [*found[:1], preload]))
    return preload


def _cpus() -> list[int] | None:
    """Return the CPUs that the model's threads are bound to: one of each physical core of the first NUMA node."""
    bound = os.environ.get(BIND, "")
    if re.fullmatch(r"\d+(,\d+)*", bound):
        return [int(cpu) for cpu in bound.split(",")]
    if {BIND, "VLLM_CPU_SIM_MULTI_NUMA", "CPU_VISIBLE_MEMORY_NODES"} & os.environ.keys():
        return None
    listed = _listed()
    reserved_cpus = os.environ.get("VLLM_CPU_NUM_OF_RESERVED_CPU") or "1"
    if listed is None or not reserved_cpus.isdecimal():
        return None
    reserved = int(reserved_cpus)
    of_core = {core: cpu for node, cpu, core in listed if node == listed[0][0]}
    chosen = sorted(of_core.values())
    return chosen[:-reserved] if 0 < reserved < len(chosen) else chosen


def divided_cores(engines: int) -> list[dict[str, str]]:
    """Return variables that give each of several engines on this machine's CPU cores of its own.

    They are none if the user has set vLLM's own, or if this code doesn't know the kind of machine.

    Raises:
        DeviceError: there are fewer cores than engines.
    """
    listed = _listed()
    if engines == 1 or os.environ.get(BIND) or listed is None:
        return [{}] * engines
    cpus = [*{core: cpu for _, cpu, core in listed}.values()]  # by memory node: an engine should have one
    if len(cpus) < engines:
        raise DeviceError(
            f"{engines} engines need a CPU core each, and this process may use {len(cpus)}: pass "
            f"max_concurrency={len(cpus)}."
        )
    ends = [len(cpus) * i // engines for i in range(engines + 1)]
    return [{BIND: ",".join(map(str, cpus[start:end]))} for start, end in itertools.pairwise(ends)]


def _listed() -> list[tuple[int, int, str]] | None:
    """Return memory node, number and core of each CPU that this process may use. None: it isn't known."""
    if platform.machine() != "x86_64":
        return None
    try:
        command = ["lscpu", "--parse=CPU,CORE,NODE", "--online"]
        text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout
        rows = [line.split(",") for line in text.splitlines() if not line.startswith("#")]
        listed = [(int(node or 0), int(cpu), core) for cpu, core, node in rows]
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    allowed = os.sched_getaffinity(0)
    return sorted(one for one in listed if one[1] in allowed)
