"""Makes vLLM's configuration of models on a made-up card: ``python -m tests.gpu_check.sweep CARD OUT [MODEL ...]``.

Writes a line of JSON for each model to OUT. Each card needs a process of its own, because vLLM keeps what it has found
out about the card.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

from tests.gpu_check.cards import CARDS, GIB, fake_gpus

_GPUS = 8
_QUANTIZATION: dict[str, dict[str, Any]] = {
    "fp8": {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "weight_block_size": [128, 128],
    },
    "mxfp4": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens"],
    },
}
"""The ``quantization_config`` of checkpoints, as their ``config.json`` has it."""
_TOKENS = [
    *("<think>", "</think>", "[THINK]", "[/THINK]", "<seed:think>", "</seed:think>", "<|channel|>", "<|message|>"),
    *("<mm:think>", "</mm:think>", "[TOOL_CALLS]"),
]
"""What vLLM's parsers of thinking and of tool calls look for in a tokenizer."""


def main(card_name: str, out: Path, only: list[str]) -> None:
    """Write what vLLM makes of each model."""
    os.environ["FAKE_GPUS"] = fake_gpus(*[card_name] * _GPUS)
    _fake_torch(card_name)
    from daft_vllm.engine.setup.environment import prepare_environment
    from daft_vllm.model_configs import known_models, resolve_model

    prepare_environment(cpu=False)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(resolve_model("smollm2-135m"))
    tokenizer.add_tokens(_TOKENS)
    import vllm.model_executor.models.registry as registry
    import vllm.platforms.cuda as platform

    platform._cuda_device_count_stateless = lambda *_: _GPUS  # it asks CUDA itself
    registry._run_in_subprocess = lambda function: function()  # a subprocess would have torch's own functions
    with tempfile.TemporaryDirectory() as name, out.open("w", encoding="utf-8") as lines:
        for model, config in known_models().items():
            if only and model not in only:
                continue
            found: dict[str, Any] = {"model": model}
            try:
                found |= _configured(config, card_name, _folder(config, Path(name), tokenizer))
            except Exception as e:
                found["error"] = f"{type(e).__name__}: {' '.join(str(e).split())[:500]}"
            print(json.dumps(found), file=lines, flush=True)


def _configured(config: Any, card_name: str, folder: Path) -> dict[str, Any]:
    from vllm import AsyncEngineArgs
    from vllm.config import StructuredOutputsConfig
    from vllm.usage.usage_lib import UsageContext

    from daft_vllm.engine.setup.config import EngineConfig
    from daft_vllm.engine.setup.environment import start_args
    from daft_vllm.model_configs.advice import engines_of
    from daft_vllm.model_configs.cards import card_named
    from daft_vllm.model_configs.resolution import resolve
    from daft_vllm.model_configs.splitting import possible_sizes

    fake = CARDS[card_name]
    card = card_named(fake.name, int(fake.gib * GIB))
    if card is None:
        raise LookupError(f"no card is named {fake.name}")
    args = {name: setting.value for name, setting in resolve(config, card=card).items()}
    best = engines_of(config, card, _GPUS, args)
    gpus = best[0] if best is not None else possible_sizes(config, args)[-1]
    args = {name: setting.value for name, setting in resolve(config, card=card, gpus=gpus).items()}
    ours = EngineConfig(str(folder), args, gpus=gpus)
    passed = start_args(ours)
    passed["structured_outputs_config"] = StructuredOutputsConfig(**passed["structured_outputs_config"])
    made = AsyncEngineArgs(model=ours.model, disable_log_stats=True, **passed).create_engine_config(
        UsageContext.LLM_CLASS
    )
    if config.architecture.state_page:  # vLLM chooses the size of their blocks later, when it has built the model
        from vllm.platforms import current_platform
        from vllm.v1.attention.backends.flash_attn import FlashAttentionBackend

        current_platform._align_hybrid_block_size(made, FlashAttentionBackend)
    return {
        "gpus": gpus,
        "fits": best is not None,
        "architecture": made.model_config.architecture,
        "runner": "v2" if made.use_v2_model_runner else "v1",
        "tokens": made.scheduler_config.max_num_batched_tokens,
        "sequences": made.scheduler_config.max_num_seqs,
        "prefix caching": made.cache_config.enable_prefix_caching,
        "block": made.cache_config.block_size,
        "dtype": str(made.model_config.dtype),
        "tensor parallel": made.parallel_config.tensor_parallel_size,
    }


def _folder(config: Any, root: Path, tokenizer: Any) -> Path:
    from transformers import AutoConfig

    from benchmarks.shrunken.kimi import write_kimi_media
    from daft_vllm.model_configs.quantization import quantization_config

    folder = root / config.name
    made = AutoConfig.for_model(**copy.deepcopy(dict(config.config)))
    if config.quantization and quantization_config(config.config) is None:
        made.quantization_config = _QUANTIZATION.get(config.quantization, {"quant_method": config.quantization})
    made.save_pretrained(folder)
    if made.model_type == "deepseek_v4":  # transformers writes other names than those that vLLM reads
        (folder / "config.json").write_text(json.dumps(dict(config.config)), encoding="utf-8")
    tokenizer.save_pretrained(folder)
    if made.model_type == "kimi_k25":
        write_kimi_media(folder)
    return folder


def _fake_torch(card_name: str) -> None:
    """Let torch and Triton, which ask CUDA itself, say what the driver says."""
    import torch

    card = CARDS[card_name]
    total = int(card.gib * GIB)
    properties = types.SimpleNamespace(
        name=card.name, total_memory=total, major=card.capability[0], minor=card.capability[1], is_integrated=False,
        multi_processor_count=108,
    )  # fmt: skip
    answers = {
        "is_available": True,
        "device_count": _GPUS,
        "get_device_capability": card.capability,
        "get_device_name": card.name,
        "mem_get_info": (total, total),
        "current_device": 0,
        "get_device_properties": properties,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    import triton
    from triton.backends.compiler import GPUTarget

    target = GPUTarget("cuda", 10 * card.capability[0] + card.capability[1], 32)
    utils = types.SimpleNamespace(
        get_device_properties=lambda _: {"max_shared_mem": 101376, "multiprocessor_count": 58, "max_num_regs": 65536}
    )
    driver = types.SimpleNamespace(get_current_target=lambda: target, get_current_device=lambda: 0, utils=utils)
    triton.runtime.driver.set_active(driver)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
