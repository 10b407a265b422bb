"""Shrunken models that read documents."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.shrunken.folder import TEXT, write_model_folder
from benchmarks.shrunken.tokenizers import CONTENT, tokenizer_with

_GLM_TEMPLATE = (
    CONTENT.replace("IMAGE", "<|begin_of_image|><|image|><|end_of_image|>")
    + """[gMASK]<sop>
{%- for m in messages -%}{{ '<|' + m.role + '|>\n' + render(m.content) }}{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|assistant|>\n' }}{%- endif -%}
"""
)
_DEEPSEEK_TEMPLATE = (
    CONTENT.replace("IMAGE", "<image>\n")
    + "{{ bos_token }}{%- for m in messages -%}{{ render(m.content) }}{%- endfor -%}"
)


def glm_ocr(base: str, folder: Path) -> str:
    """Write a GLM-OCR model: an encoder for images of any size."""
    from transformers import Glm46VProcessor, Glm46VVideoProcessor, GlmOcrConfig
    from transformers.models.glm46v.image_processing_pil_glm46v import Glm46VImageProcessorPil

    media = [f"<|{end}_of_{kind}|>" for kind in ("image", "video") for end in ("begin", "end")]
    tokenizer = tokenizer_with(
        base,
        ["[gMASK]", "<sop>", "<|user|>", "<|system|>", "<|assistant|>", *media],
        bos="<|startoftext|>",
        eos="<|endoftext|>",
        template=_GLM_TEMPLATE,
        image_token="<|image|>",
        video_token="<|video|>",
    )
    ids = {
        f"{kind}_{place}_token_id": tokenizer.convert_tokens_to_ids(f"<|{end}_of_{kind}|>")
        for kind in ("image", "video")
        for place, end in (("start", "begin"), ("end", "end"))
    }
    config = GlmOcrConfig(
        architectures=["GlmOcrForConditionalGeneration"],
        text_config={
            **TEXT,
            "vocab_size": len(tokenizer),
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "partial_rotary_factor": 1.0,
                "mrope_section": [4, 6, 6],
            },
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        },
        vision_config={
            "depth": 2,
            "hidden_size": 64,
            "intermediate_size": 64,
            "num_heads": 2,
            "image_size": 56,
            "out_hidden_size": TEXT["hidden_size"],
        },
        image_token_id=tokenizer.image_token_id,
        video_token_id=tokenizer.video_token_id,
        **ids,
        dtype="float32",
    )
    sizes = {"size": {"shortest_edge": 56 * 56, "longest_edge": 2 * 28 * 28 * 64}}
    processor = Glm46VProcessor(
        Glm46VImageProcessorPil(**sizes),
        tokenizer,
        Glm46VVideoProcessor(**sizes),
        chat_template=_GLM_TEMPLATE,
    )
    return write_model_folder(folder, config, processor, tokenizer)


def deepseek_ocr2(base: str, folder: Path) -> str:
    """Write a DeepSeek-OCR-2 model. Its image encoder is as large as the real one's: vLLM has the sizes in its code."""
    tokenizer = tokenizer_with(
        base,
        ["<|User|>", "<|Assistant|>"],
        bos="<|begin_of_sentence|>",
        eos="<|end_of_sentence|>",
        template=_DEEPSEEK_TEMPLATE,
        image_token="<image>",
    )
    config = {
        "architectures": ["DeepseekOCR2ForCausalLM"],
        "model_type": "deepseek_vl_v2",
        "candidate_resolutions": [[1024, 1024]],
        "global_view_pos": "head",
        "tile_tag": "2D",
        "language_config": {
            **{name: size for name, size in TEXT.items() if name not in ("head_dim", "num_key_value_heads")},
            "architectures": ["DeepseekV2ForCausalLM"],
            "model_type": "deepseek_v2",
            "num_key_value_heads": TEXT["num_attention_heads"],
            "moe_intermediate_size": 64,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "topk_method": "greedy",
            "first_k_dense_replace": 1,
            "use_mla": False,
            "kv_lora_rank": None,
            "q_lora_rank": None,
            "qk_nope_head_dim": 0,
            "qk_rope_head_dim": 0,
            "v_head_dim": 0,
            "vocab_size": len(tokenizer),
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
        },
        "projector_config": {
            "model_type": "mlp_projector",
            "projector_type": "linear",
            "input_dim": 896,
            "n_embed": TEXT["hidden_size"],
        },
        "vision_config": {"model_type": "vision", "image_size": 1024, "mlp_ratio": 3.7362},
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "dtype": "float32",
    }
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(folder)
