"""Shrunken MiniCPM-V models."""

from __future__ import annotations

from pathlib import Path

from benchmarks.shrunken.folder import SMALL_VISION, TEXT, write_model_folder
from benchmarks.shrunken.qwen import LINEAR_LAYERS
from benchmarks.shrunken.tokenizers import CONTENT, chatml_tokenizer

_TEMPLATE = (
    CONTENT.replace("IMAGE", "<|image_pad|>")
    + """{%- for m in messages -%}
{{ '<|im_start|>' + m.role + '\n' + render(m.content) + '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}
"""
)


def minicpm_v46(base: str, folder: Path) -> str:
    """Write a MiniCPM-V 4.6 model: Qwen3.5 as its language model, images in slices."""
    from transformers import MiniCPMV4_6Config, MiniCPMV4_6Processor, MiniCPMV4_6VideoProcessor
    from transformers.models.minicpmv4_6.image_processing_pil_minicpmv4_6 import MiniCPMV4_6ImageProcessorPil

    tokenizer = chatml_tokenizer(
        base,
        _TEMPLATE,
        image_token="<|image_pad|>",
        video_token="<|video_pad|>",
        image_start_token="<image>",
        image_end_token="</image>",
        slice_start_token="<slice>",
        slice_end_token="</slice>",
        image_id_start_token="<image_id>",
        image_id_end_token="</image_id>",
    )
    config = MiniCPMV4_6Config(
        architectures=["MiniCPMV4_6ForConditionalGeneration"],
        text_config={
            **TEXT,
            "model_type": "qwen3_5_text",
            **LINEAR_LAYERS,
            "vocab_size": len(tokenizer),
            "tie_word_embeddings": True,
        },
        vision_config={**SMALL_VISION, "image_size": 112, "patch_size": 14},
        insert_layer_id=0,
        image_size=112,
        image_token_id=tokenizer.image_token_id,
        video_token_id=tokenizer.video_token_id,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        dtype="float32",
    )
    sizes = {"scale_resolution": 112, "max_slice_nums": 2}
    processor = MiniCPMV4_6Processor(
        MiniCPMV4_6ImageProcessorPil(**sizes),
        MiniCPMV4_6VideoProcessor(**sizes),
        tokenizer,
        chat_template=_TEMPLATE,
    )
    return write_model_folder(folder, config, processor, tokenizer)
