"""Shrunken Mistral models."""

from __future__ import annotations

from pathlib import Path

from benchmarks.shrunken.folder import SMALL_VISION, TEXT, write_model_folder
from benchmarks.shrunken.tokenizers import MISTRAL_TEMPLATE, mistral_tokenizer


def mistral3(base: str, folder: Path) -> str:
    """Write a Mistral Small or Ministral 3 model: a Pixtral encoder that takes images of any size."""
    from transformers import Mistral3Config, PixtralProcessor
    from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

    tokenizer = mistral_tokenizer(base)
    config = Mistral3Config(
        architectures=["Mistral3ForConditionalGeneration"],
        text_config={"model_type": "mistral", **TEXT, "vocab_size": len(tokenizer)},
        vision_config={"model_type": "pixtral", **SMALL_VISION, "head_dim": 16, "image_size": 112, "patch_size": 14},
        image_token_index=tokenizer.image_token_id,
        spatial_merge_size=2,
        dtype="float32",
    )
    processor = PixtralProcessor(
        PixtralImageProcessorPil(size={"longest_edge": 112}, patch_size=14),
        tokenizer,
        patch_size=14,
        spatial_merge_size=2,
        chat_template=MISTRAL_TEMPLATE,
    )
    return write_model_folder(folder, config, processor, tokenizer)
