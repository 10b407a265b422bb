"""What vLLM's worker says of itself. vLLM adds this class to its worker (``worker_extension_cls``)."""

from __future__ import annotations

import os
from typing import Any

EXTENSION = f"{__name__}.WhatRuns"
VARIABLES = ("TRITON_INTERPRET", "VLLM_USE_V2_MODEL_RUNNER", "PYTHONPATH")
"""What a process needs to run V2 in Triton's interpreter."""


class WhatRuns:
    """Methods that are called by name through ``AsyncLLM.collective_rpc``."""

    model_runner: Any

    def what_runs(self) -> dict[str, Any]:
        """Return the module of the model runner, what Triton makes of a kernel, and the variables."""
        from vllm.v1.worker.gpu.sample import gumbel

        return {
            "runner": type(self.model_runner).__module__,
            "kernel": type(gumbel._gumbel_sample_kernel).__name__,
            "variables": {name: os.environ.get(name) for name in VARIABLES},
        }
