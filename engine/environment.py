"""Environment variables that vLLM reads, set before it is imported; what the user has set stays."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import psutil

from daft_vllm.engine.guardian import OWNER_PID

_GIB = 1024**3

COMMON = {
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    # A forked core would inherit locks that other threads hold, and cannot use CUDA if the parent has touched it.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}
CPU = {
    # By default vLLM keeps a core free for its front end: on 2 cores that leaves one for the model.
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
}

CPU_CORE = {
    # glibc gives the large results of each operation back to the kernel and asks for them anew in the next: at 2048
    # tokens a step that was 290,000 page faults and a tenth of the step's CPU time (SmolLM2-135M in float32 on two AVX2
    # cores, vLLM 0.32, glibc 2.36). Kept, and in huge pages, there are next to none, and a step takes a seventh less.
    # The price: the core's memory stays at its peak. glibc before 2.35 has no "hugetlb", other allocators have none.
    "GLIBC_TUNABLES": ":".join(
        (
            "glibc.malloc.hugetlb=1",
            "glibc.malloc.mmap_max=0",
            f"glibc.malloc.trim_threshold={1 << 40}",
            f"glibc.malloc.top_pad={64 << 20}",
        )
    ),
}
"""Read when a process starts: for vLLM's core on a CPU, not for the process that starts it."""


@contextlib.contextmanager
def core_environment(*, cpu: bool) -> Iterator[None]:
    """Let the processes that are started inside have the variables of vLLM's core; what the user has set stays."""
    added = {name: value for name, value in CPU_CORE.items() if cpu and name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def prepare_environment(*, cpu: bool) -> None:
    """Fill in the variables that vLLM should see. Call it before the first import of vLLM in this process."""
    for name, value in {**COMMON, **(CPU if cpu else {})}.items():
        os.environ.setdefault(name, value)
    os.environ[OWNER_PID] = str(os.getpid())
    plugins = os.environ.get("VLLM_PLUGINS")
    if plugins is not None and "daft_vllm" not in plugins.split(","):
        os.environ["VLLM_PLUGINS"] = f"{plugins},daft_vllm"


def default_engine_args(*, cpu: bool) -> dict[str, object]:
    """Return engine arguments that hold unless the user gives others; the rest is vLLM's defaults.

    On a CPU vLLM would size the KV cache like a GPU's, by a share of all memory: here it is a quarter of what is free,
    4 GiB at most. Nothing is compiled, because that takes minutes and needs a compiler. vLLM runs one step of
    ``max_num_batched_tokens`` to warm up: with 512 that costs seconds less, and fills a CPU as well as 2048. KV blocks
    hold 32 tokens in place of 128, so that shorter prefixes are shared. A CPU
    without bfloat16 instructions multiplies bfloat16 matrices 70 times slower than float32 ones (1.4 ms against 98 ms
    for 64x576 by 576x1536 on two AVX2 cores, torch 2.13), so there weights are widened to float32.
    """
    args: dict[str, object] = {
        "use_tqdm_on_load": False,
        # One backend for all, so that what it cannot enforce is refused and never handed to another in silence. Free
        # whitespace lets a model write blank lines until max_tokens (vllm#13260); xgrammar reads this setting from
        # here only, the one of the same name on a request is ignored in vLLM 0.32.
        "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
    }
    if cpu:
        args["enforce_eager"] = True
        args["max_num_batched_tokens"] = 512
        args["max_num_seqs"] = 256
        args["block_size"] = 32
        if not cpu_has_bfloat16():
            args["dtype"] = "float32"
        if not os.environ.get("VLLM_CPU_KVCACHE_SPACE"):
            args["kv_cache_memory_bytes"] = int(min(psutil.virtual_memory().available // 4, 4 * _GIB))
    return args


def cpu_has_bfloat16() -> bool:
    """Whether this CPU has instructions for bfloat16 (AVX-512 BF16, AMX, Arm BF16), by the kernel's feature list."""
    features = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    return any(name in features for name in ("avx512_bf16", "amx_bf16", " bf16"))
