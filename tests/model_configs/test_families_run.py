"""One model of each architecture that is described, shrunken, through vLLM with the settings of its file."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import daft
import numpy as np
import pytest
from daft import DataType, col

from benchmarks import shrunken
from daft_vllm import audio, prompt
from daft_vllm.model_configs import ModelConfig, known_models
from daft_vllm.model_configs.resolution import resolve
from tests.conftest import TINY_ARGS
from tests.helpers import sound

pytestmark = [pytest.mark.slow, pytest.mark.other_engine]
TEXT = [
    "deepseek-v3",
    "deepseek-v4-flash",
    "ernie-4.5-21b-a3b",
    "exaone-4.0-32b",
    "gemma-2-9b",
    "glm-4-9b-0414",
    "glm-4.5-air",
    "glm-4.7-flash",
    "granite-3.3-8b",
    "granite-4.0-micro",  # granite-4.0-h-small has Mamba-2 layers, with which vLLM 0.32 fails on CPUs (IndexError)
    "hunyuan-7b",
    "kimi-k2.5",
    "lfm2.5-1.2b",
    "lfm2.5-8b-a1b",
    "minimax-m2",
    "olmo-3-7b",
    "qwen3-next-80b-a3b",
    "seed-oss-36b",
    "gemma-3-1b",
    "gpt-oss-20b",
    "llama-3.1-8b",
    "mistral-small-3-24b",
    "phi-4",
    "qwen2.5-7b",
    "qwen3-30b-a3b",
    "qwen3-8b",
    "r1-distill-qwen-7b",
    "smollm3-3b",
]
IMAGES: dict[str, Callable[[str, Path], str]] = {
    "gemma-3-4b": shrunken.gemma3,
    "gemma-3n-e2b": shrunken.gemma3n,
    "gemma-4-12b": shrunken.gemma4_unified,
    "gemma-4-e2b": shrunken.gemma4,
    "deepseek-ocr-2": shrunken.deepseek_ocr2,
    "glm-ocr": shrunken.glm_ocr,
    "internvl3.5-8b": shrunken.internvl,
    "llama-4-scout": shrunken.llama4,
    "minicpm-v-4.6": shrunken.minicpm_v46,
    "mistral-small-3.2-24b": shrunken.mistral3,
    "paddleocr-vl-1.6": shrunken.paddleocr_vl,
    "qwen2.5-vl-7b": shrunken.qwen25_vl,
    "qwen3-vl-8b": shrunken.qwen3_vl,
    "qwen3-vl-30b-a3b": shrunken.qwen3_vl_moe,
    "qwen3.5-9b": shrunken.qwen3_5,
    "qwen3.5-35b-a3b": shrunken.qwen3_5_moe,
    "smolvlm": shrunken.smolvlm,
    "smolvlm2-2.2b": shrunken.smolvlm2,
}

SOUNDS: dict[str, Callable[[str, Path], str]] = {"qwen3-asr-0.6b": shrunken.qwen3_asr}
NOT_ON_CPUS = {
    "deepseek-v3.2": "Sparse Attention is not supported on CPU",
    "glm-5.2-fp8": "Sparse Attention is not supported on CPU",
    "nemotron-3-nano-30b-a3b": "is_act_and_mul=False is supported only for CUDA, XPU and ROCm",
}
"""Models that vLLM 0.32 doesn't run on CPUs, and what it says. Mistral-Small-4 isn't described: vLLM reads its text
model in Mistral's own format only, and the sizes of its image encoder have no source."""
NOT_SHRUNKEN = {"deepseek_v4", "minimax_m3_vl"}
"""Kinds of models that no test runs. DeepSeek-V4: vLLM 0.32 has it for CPUs, and nobody has tried it shrunken yet.
MiniMax-M3: vLLM has it in modules for NVIDIA and AMD alone, with an image processor of its own that reads the files of
the real model."""

SMALL = {
    "attention_chunk_size": 64,
    "block_auto_adjust_ff_dim": False,
    "block_dim": 128,
    "block_ff_dim": 256,
    "conv_dim": 128,
    "conv_dim_out": 128,
    "first_k_dense_replace": 1,
    "hybrid_override_pattern": "ME*E",
    "index_n_heads": 2,
    "indexer_types": ["full", "full", "shared", "full"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "mamba_d_head": 32,
    "mamba_d_state": 32,
    "mamba_head_dim": 32,
    "mamba_n_heads": 8,
    "mamba_num_heads": 8,
    "moe_intermediate_size": 64,
    "moe_k": 2,
    "num_dense_layers": 1,
    "moe_num_experts": 8,
    "moe_shared_expert_intermediate_size": 64,
    "n_group": 2,
    "n_groups": 2,
    "n_routed_experts": 8,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
    "num_nextn_predict_layers": 0,
    "q_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "rotary_dim": 16,
    "scoring_func": "softmax",  # MiniMax's has sigmoid, which vLLM's router for CPUs doesn't know
    "shared_expert_intermediate_size": 64,
    "shared_intermediate_size": 64,
    "sliding_window": 64,
    "ssm_state_size": 32,
    "topk_group": 1,
    "v_head_dim": 32,
}


def shrunk(config: ModelConfig, vocabulary: int) -> dict[str, Any]:
    """Return the model's config with everything that is large made small; what kind of model it is stays."""
    small = copy.deepcopy(dict(config.config))
    layers = 6 if "gemma" in small["model_type"] else 4
    small |= {"num_hidden_layers": layers, "hidden_size": 128, "intermediate_size": 256, "vocab_size": vocabulary}
    grouped = small["num_attention_heads"] // small["num_key_value_heads"]
    small |= {"num_attention_heads": 4, "num_key_value_heads": max(1, 4 // grouped)}
    if "kv_lora_rank" not in small:  # in GLM-4.7-Flash it is the rotated part alone
        small["head_dim"] = 32
    small |= {name: size for name, size in SMALL.items() if small.get(name) is not None}
    if "layer_types" in small:  # of each kind at least one
        kinds = small["layer_types"]
        first = {kind: kinds.index(kind) for kind in kinds}
        small["layer_types"] = [kinds[i] for i in sorted({*first.values(), *range(layers - len(first) + 1)})][:layers]
        small["layer_types"] += [kinds[-1]] * (layers - len(small["layer_types"]))
    return {
        **small,
        "max_position_embeddings": 4096,
        "dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }


def answered(config: ModelConfig, folder: str, messages: Any, df: daft.DataFrame) -> list[dict[str, Any]]:
    settings = {name: setting.value for name, setting in resolve(config).items()}
    args = {**settings, **TINY_ARGS, "max_model_len": 1024}
    if config.config["model_type"].startswith(("qwen3_5", "minicpmv4_6")):
        args["dtype"] = "bfloat16"  # vLLM's linear attention on CPUs takes no other
    if any(Path(folder).glob("*.safetensors")):
        args["load_format"] = "auto"
    fixed: dict[str, Any] = {"model": folder, "gpus": 0, "use_process": False, "details": True, "engine_args": args}
    asked = prompt(messages, ["yes", "no"], chat_template_kwargs=config.prompting.chat_template_kwargs, **fixed)
    free = prompt(messages, max_tokens=8, ignore_eos=True, **fixed)
    rows = df.select("id", asked.alias("asked"), free.alias("free")).to_pylist()
    assert [row["id"] for row in rows] == df.to_pydict()["id"]
    for row in rows:
        assert row["asked"]["value"] in ("yes", "no"), row["asked"]["error"] or row
        assert row["free"]["completion_tokens"] == 8, row
    return rows


def text_folder(name: str, base: str, folder: Path) -> str:
    """Write the shrunken model and return its folder."""
    from transformers import AutoConfig

    if name == "kimi-k2.5":
        return shrunken.kimi_k25(base, folder)

    tokenizer = shrunken.qwen_tokenizer(base)
    small = shrunk(known_models()[name], len(tokenizer))
    if small["model_type"] == "deepseek_v4":  # transformers writes other names than those that vLLM reads
        (folder / "config.json").write_text(json.dumps(small), encoding="utf-8")
    else:
        AutoConfig.for_model(**small).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("name", TEXT)
def test_text(name: str, smollm2: str, tmp_path: Path) -> None:
    folder = text_folder(name, smollm2, tmp_path)
    df = daft.from_pydict({"id": [0, 1, 2], "q": ["Is it?", "word " * 300, "What about the other?"]})
    if name == "kimi-k2.5":  # as a process's first engine it fails: vLLM's search for kernels stumbles over numba
        answered(known_models()["qwen3-8b"], text_folder("qwen3-8b", smollm2, tmp_path / "qwen"), col("q"), df)
    rows = answered(known_models()[name], folder, col("q"), df)
    assert rows[1]["free"]["prompt_tokens"] > 300


@pytest.mark.parametrize("name", IMAGES)
def test_images(name: str, smollm2: str, tmp_path: Path) -> None:
    config = known_models()[name]
    folder = IMAGES[name](smollm2, tmp_path / "model")
    pixels = [np.full((64, 80, 3), 40 * i, dtype=np.uint8) for i in range(3)]
    df = daft.from_pydict({"id": [0, 1, 2], "image": pixels, "q": ["Is it?", "And now?", "What about it?"]})
    df = df.with_column("image", col("image").cast(DataType.image("RGB")))
    answered(config, folder, [col("image"), col("q")], df)


@pytest.mark.parametrize("name", SOUNDS)
def test_sounds(name: str, smollm2: str, tmp_path: Path) -> None:
    config = known_models()[name]
    folder = SOUNDS[name](smollm2, tmp_path / "model")
    df = daft.from_pydict({"id": [0, 1, 2], "sound": [sound(0.3 + 0.4 * i, 200 + 50 * i) for i in range(3)]})
    rows = answered(config, folder, [audio(col("sound"))], df)
    tokens = [row["free"]["prompt_tokens"] for row in rows]
    assert tokens == sorted(set(tokens))  # the longer the sound, the more tokens


@pytest.mark.parametrize("name", NOT_ON_CPUS)
def test_what_vllm_does_not_run_on_cpus(name: str, smollm2: str, tmp_path: Path) -> None:
    folder = text_folder(name, smollm2, tmp_path)
    with pytest.raises(Exception, match=NOT_ON_CPUS[name]):  # else it can be run, above
        answered(known_models()[name], folder, col("q"), daft.from_pydict({"id": [0], "q": ["Is it?"]}))


def test_every_architecture_is_run() -> None:
    run = {known_models()[name].config["model_type"] for name in (*TEXT, *IMAGES, *SOUNDS, *NOT_ON_CPUS)}
    assert {config.config["model_type"] for config in known_models().values()} == run | NOT_SHRUNKEN
