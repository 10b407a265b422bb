"""Shrunken Kimi models."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.shrunken.folder import TEXT, write_model_folder
from benchmarks.shrunken.tokenizers import KIMI_TEMPLATE, tokenizer_with

_MEDIA = {
    "in_patch_limit": 256,
    "patch_size": 14,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "merge_kernel_size": 2,
    "fixed_output_tokens": None,
    "patch_limit_on_one_side": 64,
    "in_patch_limit_each_frame": 256,
    "in_patch_limit_video": None,
    "sample_fps": 2.0,
    "temporal_merge_kernel_size": 4,
}
"""What vLLM's own preparation of its images reads (``KimiK25FusedVisionProcessor``). Limits are in patches."""


def kimi_k25(base: str, folder: Path) -> str:
    """Write a Kimi-K2.5 model: DeepSeek-V3 as its language model, and an encoder for images of any size."""
    from transformers import Kimi_K25Config

    special = [f"<|{name}|>" for name in ("im_user", "im_system", "im_assistant", "im_middle", "im_end")]
    media = [f"<|media_{name}|>" for name in ("begin", "content", "pad", "end")]
    thinking = ["<think>", "</think>", *(f"<|tool_calls_section_{end}|>" for end in ("begin", "end"))]
    tokenizer = tokenizer_with(
        base, [*special, *media, *thinking], bos="[BOS]", eos="<|im_end|>", template=KIMI_TEMPLATE
    )
    config = Kimi_K25Config(
        architectures=["KimiK25ForConditionalGeneration"],
        text_config={
            **{name: size for name, size in TEXT.items() if name != "head_dim"},
            "model_type": "deepseek_v3",
            "num_key_value_heads": 2,
            "moe_intermediate_size": 64,
            "q_lora_rank": 32,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 32,
            "qk_rope_head_dim": 64,
            "v_head_dim": 32,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "vocab_size": len(tokenizer),
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
        },
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "pos_emb_height": 16,
            "pos_emb_width": 16,
        },
        projection_hidden_size=32,
        image_token_id=tokenizer.convert_tokens_to_ids("<|media_pad|>"),
        use_unified_vision_chunk=True,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=False,
        dtype="float32",
    )
    written = write_model_folder(folder, config, None, tokenizer)
    write_kimi_media(folder)
    return written


def write_kimi_media(folder: Path) -> None:
    """Write how a Kimi model prepares its images, the file that vLLM needs to know it."""
    saved = {"media_proc_cfg": _MEDIA, "image_processor_type": "KimiK25VisionProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps(saved), encoding="utf-8")
