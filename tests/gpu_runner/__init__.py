"""What rows get from vLLM's runner for GPUs (V2), run on a CPU in Triton's interpreter: a part of ``make gpu-check``.

vLLM uses V2 with CUDA, and V1 with its build for the CPU. They sample, mask and count penalties in other code: V2 in
Triton kernels. Triton runs them as Python on a CPU, which takes about a second for each step.
"""

import os

import pytest

MARKS = [
    pytest.mark.gpu_check,
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="`make gpu-check` runs these in .venv"),
]
"""For ``pytestmark``."""
