"""What ``reproducible=True`` asks of an engine: vLLM's variables, its arguments, and what it can't be had with."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

from daft_vllm.errors import DeviceError, OptionError

LEAST_CAPABILITY = (8, 0)
"""The least compute capability of a card for vLLM's batch-invariant mode (vllm-project/vllm,
docs/features/batch_invariance.md at 029bdec)."""

GPU_VARIABLES = {"VLLM_BATCH_INVARIANT": "1"}
"""Turn on vLLM's batch-invariant mode, in the process that starts its core and in all of its own."""

CPU_CORE_VARIABLES = {
    # Otherwise the lengths of all rows decide into how many pieces the keys of one row are cut.
    "VLLM_CPU_ATTN_SPLIT_KV": "0",
    # Otherwise torch has two functions exp: one for eight or sixteen numbers, and one for those left over.
    "ATEN_CPU_CAPABILITY": "default",
}
"""For vLLM's core on a CPU. ``engine/patches/cpu/same_bits.py`` does the rest."""

SET_BY_VLLM = ("VLLM_USE_BREAKABLE_CUDAGRAPH",)
"""Variables that vLLM sets in the process that starts its core, by the model and this mode. They would change the next
engine of the process."""

ATTENTION_BACKENDS = ("FLASH_ATTN", "FLASH_ATTN_MLA", "FLEX_ATTENTION", "TRITON_ATTN", "TRITON_MLA")
"""vLLM 0.32's attention backends whose ``supports_batch_invariance`` is true."""

_NEVER = {
    "speculative_config": "guessed tokens are drawn and checked in groups that depend on the other rows",
    "enable_eplb": "it moves experts by what all rows ask of them",
    "enable_dbo": "it cuts a step in two, by the number of rows",
    "calculate_kv_scales": "the scales come from the rows that are computed first",
}
_SIZES = ("data_parallel_size", "decode_context_parallel_size", "prefill_context_parallel_size")


def check_arguments(engine_args: Mapping[str, Any], adapters: Mapping[str, str], gpus: float, processes: int) -> None:
    """Raise ``OptionError`` for arguments with which an engine's answers depend on the other rows.

    Args:
        engine_args: arguments of vLLM's engine.
        adapters: the engine's LoRA adapters.
        gpus: the engine's GPUs. 0: it runs on the CPU.
        processes: how many processes the model is split over.
    """
    for name, why in _NEVER.items():
        if engine_args.get(name):
            raise _refused(f"engine_args={{{name!r}: ...}}", why)
    for name in _SIZES:
        if int(engine_args.get(name) or 1) > 1:
            raise _refused(f"{name}={engine_args[name]}", "which part of a batch a row is in depends on the other rows")
    if gpus:
        backend = attention_backend(engine_args)
        if backend not in (None, "AUTO", *ATTENTION_BACKENDS):
            raise _refused(
                f"the attention backend {backend}",
                f"vLLM's batch-invariant mode knows {', '.join(ATTENTION_BACKENDS)}",
            )
    else:
        _check_cpu_arguments(engine_args, adapters, processes)


def _check_cpu_arguments(engine_args: Mapping[str, Any], adapters: Mapping[str, str], processes: int) -> None:
    dtype = str(engine_args.get("dtype", "float32")).removeprefix("torch.")
    if dtype not in ("float32", "float"):
        raise OptionError(
            f"reproducible=True computes in float32 on a CPU, and engine_args has dtype={dtype!r}: leave dtype out, or "
            "write 'float32'."
        )
    if adapters:
        raise _refused("adapters on a CPU", "the numbers of rows with an adapter are not the same in every batch there")
    if processes > 1:
        raise _refused("several processes on a CPU", "they add their shares of a sum in no fixed order")
    if engine_args.get("enforce_eager") is False:
        raise _refused("enforce_eager=False on a CPU", "compiled code depends on the number of rows")
    for name in ("quantization", "quantization_config"):
        if engine_args.get(name) is not None:
            raise _refused(f"{name} on a CPU", "the kernels for quantized weights depend on the number of rows")
    cache = engine_args.get("kv_cache_dtype", "auto")
    if cache not in ("auto", "float32"):
        raise _refused(f"kv_cache_dtype={cache!r} on a CPU", "the cache has to keep all bits of float32")


def _refused(what: str, why: str) -> OptionError:
    return OptionError(f"reproducible=True can't be had with {what}: {why}. Leave one of the two out.")


def attention_backend(engine_args: Mapping[str, Any]) -> str | None:
    """Return the attention backend that ``engine_args`` name, in capitals. None: they name none."""
    config = engine_args.get("attention_config")
    inner = config.get("backend") if isinstance(config, Mapping) else getattr(config, "backend", None)
    named = engine_args.get("attention_backend") or inner
    return None if named is None else str(getattr(named, "name", named)).upper()


def check_machine(gpus: float) -> None:
    """Raise ``DeviceError`` if this machine's processor is one for which nothing is known. For engines on a CPU."""
    if not gpus and platform.machine() not in ("x86_64", "AMD64"):
        raise DeviceError(
            f"reproducible=True on a CPU needs an x86-64 processor, and this is {platform.machine()}: leave it out, or "
            "use a GPU."
        )


def check_capability(name: str, capability: tuple[int, int]) -> None:
    """Raise ``DeviceError`` if a card is too old for vLLM's batch-invariant mode."""
    if capability < LEAST_CAPABILITY:
        raise DeviceError(
            f"reproducible=True needs a card with compute capability {LEAST_CAPABILITY[0]}.{LEAST_CAPABILITY[1]} or "
            f"more, for vLLM's batch-invariant mode, and a {name} has {capability[0]}.{capability[1]}: use another "
            "card, or leave reproducible out."
        )
