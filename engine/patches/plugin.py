"""The vLLM plugin: what daft-vllm adds to vLLM's own processes."""

from __future__ import annotations

import os
import sys

from daft_vllm.engine.setup.guardian import OWNER_PID, exit_with_parent
from daft_vllm.engine.setup.log import mark_own_warnings


def register() -> None:
    """Called by vLLM in each of its processes. Does nothing outside an engine of daft-vllm."""
    if OWNER_PID not in os.environ:
        return
    exit_with_parent()
    if os.environ[OWNER_PID] != str(os.getpid()):
        mark_own_warnings()
    if "vllm.v1.engine.core" not in sys.modules:  # this process is not the core's
        return
    from daft_vllm.engine.patches.adapter_ops import fix_adapter_ops
    from daft_vllm.engine.patches.either_backend import register_backend
    from daft_vllm.engine.patches.registry import apply_patch

    apply_patch("either_backend", register_backend)
    apply_patch("adapter_ops", fix_adapter_ops)
