"""A Ray cluster of several nodes on this machine, and scripts that run on it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="package")
def cluster() -> Iterator[str]:
    """The address of a cluster: a head that runs nothing, two nodes with 2 CPUs and 2 GPUs, one with 2 CPUs and 1 GPU.

    No GPU is real: Ray counts them, and sets the mask. The resource ``pair`` is on the first two nodes, ``single`` on
    the other. This process isn't connected: each script is, since a process has one runner of Daft's.
    """
    from ray.cluster_utils import Cluster

    started = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        for _ in range(2):
            started.add_node(num_cpus=2, num_gpus=2, resources={"pair": 1})
        started.add_node(num_cpus=2, num_gpus=1, resources={"single": 1})
        yield started.address
    finally:
        started.shutdown()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a script, or the command if ``script`` is None, with Daft's runner on the Ray of ``address`` or natively."""

    def run(
        script: str | None, *args: str, address: str | None = None, seconds: float = 120
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", "from daft_vllm.cli import app; app()"]
        if script is not None:
            (tmp_path / "script.py").write_text(script, encoding="utf-8")
            command = [sys.executable, str(tmp_path / "script.py")]
        env = {name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "CUDA_VISIBLE_DEVICES")}
        env |= {"DAFT_RUNNER": "native" if address is None else "ray"} if script is not None else {}
        env |= {"RAY_ADDRESS": address} if address and script is not None else {}
        return subprocess.run(
            [*command, *args], capture_output=True, text=True, timeout=seconds, check=False, env=env, cwd=tmp_path
        )

    return run
