"""What only vLLM's runner for GPUs (V2) does: run with ``pytest -m gpu`` on a GPU.

With ``DAFT_VLLM_GPU_TESTS_ON_CPU=1`` the same tests run on the CPU, on its runner (V1), where there is no GPU: so that
they can be tried before a GPU is there.
"""

import os

import pytest

from daft_vllm.engine.setup.devices.driver import visible_gpus

ON_CPU = os.environ.get("DAFT_VLLM_GPU_TESTS_ON_CPU") == "1"
GPUS = 1 if visible_gpus() else 0
MARKS = [
    pytest.mark.gpu,
    pytest.mark.other_engine,
    pytest.mark.skipif(not GPUS and not ON_CPU, reason="no GPU is visible"),
]
"""For ``pytestmark``."""
ARGS = {
    "max_model_len": 512,
    "max_num_seqs": 16,
    "kv_cache_memory_bytes": 256 << 20,
    "gpu_memory_utilization": 0.3,
    "enforce_eager": True,  # starts in a third of the time
}
DUMMY_ARGS = {**ARGS, "load_format": "dummy"}
