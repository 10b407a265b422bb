"""Environment variables for vLLM, set before it is imported, and arguments for its engine. The user's values stay."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from daft_vllm.engine.setup.config import EngineConfig
from daft_vllm.engine.setup.guardian import OWNER_PID
from daft_vllm.engine.setup.log import log_on_screen
from daft_vllm.engine.setup.model_files.mistral import hf_tokenizer_args
from daft_vllm.engine.setup.reproducible import CPU_CORE_VARIABLES
from daft_vllm.folders import passing_folder

_GIB = 1024**3

START_LOCK = threading.Lock()
"""Locked while an engine starts with its own variables: the whole process has them until the engine's children run."""
_this_thread = threading.local()

COMMON = {
    "VLLM_NO_USAGE_STATS": "1",
    # A forked core would inherit locks that other threads hold, and cannot use CUDA if the parent has used it.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}
CPU = {
    # By default vLLM keeps a core free for its front end: on 2 cores that leaves one for the model.
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
}

CPU_CORE = {
    # glibc returns the memory of each operation's large results to the kernel, and asks for it again in the next
    # operation. At 2048 tokens a step that was 290,000 page faults and a tenth of the step's CPU time (SmolLM2-135M in
    # float32 on two AVX2 cores, vLLM 0.32, glibc 2.36). With these settings glibc keeps the memory, in huge pages.
    # There are almost no page faults, and a step takes a seventh less. The price: the core's memory stays at its peak.
    # glibc before 2.35 has no "hugetlb"; other allocators have none of these settings.
    "GLIBC_TUNABLES": ":".join(
        (
            "glibc.malloc.hugetlb=1",
            "glibc.malloc.mmap_max=0",
            f"glibc.malloc.trim_threshold={1 << 40}",
            f"glibc.malloc.top_pad={64 << 20}",
        )
    ),
}
"""Variables that a process reads when it starts: for vLLM's core on a CPU, not for the process that starts it."""

SOCKETS = "VLLM_RPC_BASE_PATH"
"""vLLM's variable for the folder of its sockets. By default it is the temporary folder, where the rights of a socket
depend on the umask: under 002, which many systems have, others of the group could connect, and send pickles."""
_SOCKETS_PREFIX = "daft-vllm-sockets-"
_SOCKET_NAME = 37
"""Bytes that vLLM adds to the folder for a socket: a slash and a UUID."""

CPU_KERNELS = "daft_vllm_cpu"
"""Name of the implementations in ``engine/patches/cpu/kernels.py``."""
AMX_KERNELS = {
    "ir_op_priority": {op: [CPU_KERNELS, "native"] for op in ("rms_norm", "fused_add_rms_norm")},
}
"""vLLM's ``kernel_config`` for a CPU with AMX and without torch.compile.

vLLM 0.32 has compiled kernels for RMS normalization in its CPU build, but offers them only to GPUs. On a CPU it expects
torch.compile to fuse the same operators, which are written in torch. Not compiled, they take 18 to 23% of a step
(SmolLM2-135M in bfloat16 on two cores with AMX, steps of 2048 and 512 tokens): one call at 512 tokens takes 271 µs in
torch and 72 µs in the kernel. In 16-bit types the kernels round in other places than torch does. That changes the last
bit of a third of the numbers, and changes an answer where two tokens are almost equally likely. With AMX such an answer
depends on the batch in any case. Without AMX, matrix products take so much longer that the kernels save nothing
(AVX-512 BF16, 225 µs against 50 µs a call), and with vLLM's own operators only 0.5% of the answers differ from those of
``LLM.generate`` (benchmarks/RESULTS.md).
"""


def set_variables(values: Mapping[str, str | None]) -> None:
    """Set environment variables of this process. None removes a variable."""
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextlib.contextmanager
def kept_variables(names: Iterable[str]) -> Iterator[None]:
    """Give these variables back the values that they have now, or none, when the ``with`` block ends."""
    before = {name: os.environ.get(name) for name in names}
    try:
        yield
    finally:
        set_variables(before)


@contextlib.contextmanager
def environment_variables(values: Mapping[str, str]) -> Iterator[None]:
    """Give these variables to processes that are started inside the ``with`` block."""
    with kept_variables(values):
        os.environ.update(values)
        yield


@contextlib.contextmanager
def start_with(values: Mapping[str, str], *, beside_others: bool) -> Iterator[None]:
    """Let this thread start an engine with these variables inside the ``with`` block, when no other thread does.

    Args:
        values: the variables.
        beside_others: let others start engines while this thread is in ``others_may_start``.
    """
    with START_LOCK:
        _this_thread.before = dict(os.environ) if beside_others else None
        try:
            with environment_variables(values):
                yield
        finally:
            _this_thread.before = None


@contextlib.contextmanager
def others_may_start() -> Iterator[None]:
    """Let other threads start engines inside the ``with`` block: this thread only waits for processes that run.

    They don't see the variables that this thread has set. Does nothing outside ``start_with(beside_others=True)``.
    """
    before: dict[str, str] | None = getattr(_this_thread, "before", None)
    if before is None:
        yield
        return
    names = {*before, *os.environ}
    changed = {name: os.environ.get(name) for name in names if os.environ.get(name) != before.get(name)}
    set_variables({name: before.get(name) for name in changed})
    START_LOCK.release()
    try:
        yield
    finally:
        START_LOCK.acquire()
        set_variables(changed)


def core_environment(*, cpu: bool, reproducible: bool = False) -> contextlib.AbstractContextManager[None]:
    """Give the core's variables to processes started inside the ``with`` block.

    What the user has set stays, except what ``reproducible`` needs.
    """
    if not cpu:
        return contextlib.nullcontext()
    values = {name: value for name, value in CPU_CORE.items() if name not in os.environ}
    return environment_variables(values | (CPU_CORE_VARIABLES if reproducible else {}))


def prepare_environment(*, cpu: bool) -> None:
    """Set the variables for vLLM that are missing. Call it before the first import of vLLM in this process."""
    for name, value in {**COMMON, **(CPU if cpu else {})}.items():
        os.environ.setdefault(name, value)
    if SOCKETS not in os.environ or engine_folder() is not None:  # a parent's goes when the parent ends
        os.environ[SOCKETS] = _socket_folder()
    if log_on_screen():  # a log file gets vLLM's own level, which is INFO
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ[OWNER_PID] = str(os.getpid())
    plugins = os.environ.get("VLLM_PLUGINS")
    if plugins is not None and "daft_vllm" not in plugins.split(","):
        os.environ["VLLM_PLUGINS"] = f"{plugins},daft_vllm"


def engine_folder() -> str | None:
    """Return the folder for what belongs to this process's engines. None: the user has chosen another for sockets."""
    folder = os.environ.get(SOCKETS, "")
    return folder if Path(folder).name.startswith(_SOCKETS_PREFIX) else None


_socket_folders: list[str] = []


def _socket_folder() -> str:
    """Return this process's folder for vLLM's sockets: a new one, if the last was removed meanwhile."""
    if not _socket_folders or not os.path.isdir(_socket_folders[-1]):
        _socket_folders.append(passing_folder(_SOCKETS_PREFIX, _SOCKET_NAME))
    return _socket_folders[-1]


def default_engine_args(*, cpu: bool) -> dict[str, object]:
    """Return our default engine arguments. The user's replace them; all others are vLLM's (see ``start_args``).

    On a CPU vLLM would give the KV cache a share of all memory, as on a GPU. Here it gets a quarter of the free memory,
    4 GiB at most. Nothing is compiled, because that takes minutes and needs a compiler. To warm up, vLLM runs one step
    of ``max_num_batched_tokens``: 512 tokens take seconds less than 2048, and fill a CPU as well. KV blocks have 32
    tokens instead of 128, so that shorter prefixes are shared. A CPU without bfloat16 instructions multiplies bfloat16
    matrices 70 times slower than float32 matrices (98 ms against 1.4 ms for 64x576 by 576x1536 on two AVX2 cores, torch
    2.13), so on such a CPU weights are converted to float32.
    """
    args: dict[str, object] = {
        "use_tqdm_on_load": False,
        # The model's context, or as much of it as fits into memory.
        "max_model_len": -1,
        # Otherwise vLLM puts all images before the text, if the chat template takes messages as strings.
        "interleave_mm_strings": True,
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


def start_args(config: EngineConfig, left_out: Collection[str] = ()) -> dict[str, Any]:
    """Return the arguments for vLLM's engine: the defaults, ``config.engine_args``, and what follows from both.

    Args:
        config: how the engine is started.
        left_out: names of the patches of vLLM that are not applied (``patches/registry.py``).
    """
    cpu = config.gpus == 0
    args: dict[str, Any] = {**default_engine_args(cpu=cpu), **config.engine_args}
    if cpu and config.reproducible:
        args["dtype"] = "float32"  # same_bits.py was made for it
    guided = args.get("structured_outputs_config", {})
    if isinstance(guided, Mapping):
        # xgrammar by name, so that vLLM refuses what xgrammar cannot enforce, and never passes it silently to another
        # backend. Constraints for llguidance carry a mark (patches/either_backend.py). Free whitespace lets a model
        # write blank lines until max_tokens (vllm#13260). The backends read this setting only from here: vLLM 0.32
        # ignores the setting of the same name on a request.
        args["structured_outputs_config"] = {"disable_any_whitespace": True, **guided, "backend": "xgrammar"}
    if cpu and config.parallel_size == 1 and "executor" not in left_out:
        executor = "ReproducibleExecutor" if config.reproducible else "InCoreExecutor"
        args["distributed_executor_backend"] = f"daft_vllm.engine.patches.executor.{executor}"
        wanted = "kernels" not in left_out and args["enforce_eager"] and cpu_has_amx()
        if wanted and not {"kernel_config", "ir_op_priority"} & args.keys():
            args["kernel_config"] = AMX_KERNELS  # this executor registers them
    args |= hf_tokenizer_args(config.model, config.engine_args)
    if config.gpus >= 1:
        args.setdefault("tensor_parallel_size", int(config.gpus) // int(args.get("pipeline_parallel_size", 1)))
    elif config.gpus > 0:
        # Several engines share the card: each takes its share of the memory (0.92 is vLLM's default for one engine).
        args.setdefault("gpu_memory_utilization", round(0.92 * config.gpus, 3))
    return args


def cpu_has_bfloat16() -> bool:
    """Whether this CPU has instructions for bfloat16 (AVX-512 BF16, AMX, Arm BF16), by the kernel's feature list."""
    features = _cpu_features()
    return any(name in features for name in ("avx512_bf16", "amx_bf16", " bf16"))


def cpu_has_amx() -> bool:
    """Whether this CPU multiplies bfloat16 matrices with AMX, by the kernel's feature list."""
    return "amx_bf16" in _cpu_features()


def _cpu_features() -> str:
    return Path("/proc/cpuinfo").read_text(encoding="utf-8")
