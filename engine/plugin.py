"""The plugin that vLLM loads in each of its processes, by the entry point in the group ``vllm.general_plugins``."""

from __future__ import annotations

import os

from daft_vllm.engine.environment import OWNER_PID
from daft_vllm.engine.guardian import die_with_parent


def register() -> None:
    """Set up a process of daft-vllm's engine. Does nothing in one that another program starts with vLLM."""
    if OWNER_PID not in os.environ:
        return
    die_with_parent()
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        from daft_vllm.engine.kernels import register_cpu_kernels

        register_cpu_kernels()
