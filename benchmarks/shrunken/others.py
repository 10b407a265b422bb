"""Shrunken models of families with one member each."""

from __future__ import annotations

from pathlib import Path

from benchmarks.shrunken.folder import SMALL_VISION, TEXT, write_model_folder
from benchmarks.shrunken.tokenizers import (
    INTERNVL_TEMPLATE,
    LLAMA_4_TEMPLATE,
    PADDLEOCR_TEMPLATE,
    internvl_tokenizer,
    llama_4_tokenizer,
    paddleocr_tokenizer,
)


def internvl(base: str, folder: Path) -> str:
    """Write an InternVL model with Qwen3 as its language model."""
    from transformers import InternVLConfig, InternVLProcessor, InternVLVideoProcessor, Qwen3Config
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

    tokenizer = internvl_tokenizer(base)
    config = InternVLConfig(
        architectures=["InternVLForConditionalGeneration"],
        text_config=Qwen3Config(**TEXT, vocab_size=len(tokenizer)).to_dict(),
        vision_config={**SMALL_VISION, "image_size": [56, 56], "patch_size": [14, 14]},
        downsample_ratio=0.5,
        image_token_id=tokenizer.context_image_token_id,
        image_seq_length=4,
        eos_token_id=tokenizer.eos_token_id,
        dtype="float32",
    )
    size = {"height": 56, "width": 56}
    processor = InternVLProcessor(
        GotOcr2ImageProcessorPil(size=size, crop_to_patches=False),
        tokenizer,
        InternVLVideoProcessor(size=size),
        image_seq_length=4,
        chat_template=INTERNVL_TEMPLATE,
    )
    return write_model_folder(folder, config, processor, tokenizer)


def llama4(base: str, folder: Path) -> str:
    """Write a Llama 4 model: chunked attention, a mixture of experts, images in tiles."""
    from transformers import Llama4Config, Llama4ImageProcessor, Llama4Processor

    tokenizer = llama_4_tokenizer(base)
    ids = {name: tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in ("patch", "image_start", "image_end")}
    config = Llama4Config(
        architectures=["Llama4ForConditionalGeneration"],
        text_config={
            **TEXT,
            "num_hidden_layers": 4,
            "vocab_size": len(tokenizer),
            "intermediate_size_mlp": 128,
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
            "interleave_moe_layer_step": 1,
            "attention_chunk_size": 512,
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.eos_token_id,
        },
        vision_config={
            **SMALL_VISION,
            "intermediate_size": 128,
            "image_size": 56,
            "patch_size": 14,
            "pixel_shuffle_ratio": 0.5,
            "vision_output_dim": 64,
            "projector_input_dim": 64,
            "projector_output_dim": 64,
        },
        image_token_index=ids["patch"],
        boi_token_index=ids["image_start"],
        eoi_token_index=ids["image_end"],
        dtype="float32",
    )
    image = Llama4ImageProcessor(size={"height": 56, "width": 56}, max_patches=4)
    return write_model_folder(
        folder, config, Llama4Processor(image, tokenizer, chat_template=LLAMA_4_TEMPLATE), tokenizer
    )


def paddleocr_vl(base: str, folder: Path) -> str:
    """Write a PaddleOCR-VL model: ERNIE 4.5 as its language model, and an encoder for images of any size."""
    from transformers import PaddleOCRVLConfig, PaddleOCRVLProcessor
    from transformers.models.paddleocr_vl.image_processing_pil_paddleocr_vl import PaddleOCRVLImageProcessorPil

    tokenizer = paddleocr_tokenizer(base)
    config = PaddleOCRVLConfig(
        architectures=["PaddleOCRVLForConditionalGeneration"],
        text_config={
            **TEXT,
            "vocab_size": len(tokenizer),
            "rope_parameters": {"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 5e5},
            "tie_word_embeddings": False,
        },
        vision_config={**SMALL_VISION, "image_size": 56, "patch_size": 14},
        image_token_id=tokenizer.image_token_id,
        video_token_id=tokenizer.convert_tokens_to_ids("<|video_pad|>"),
        vision_start_token_id=tokenizer.convert_tokens_to_ids("<|IMAGE_START|>"),
        vision_end_token_id=tokenizer.convert_tokens_to_ids("<|IMAGE_END|>"),
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        dtype="float32",
    )
    image = PaddleOCRVLImageProcessorPil(size={"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 64})
    processor = PaddleOCRVLProcessor(image, tokenizer, chat_template=PADDLEOCR_TEMPLATE)
    return write_model_folder(folder, config, processor, tokenizer)
