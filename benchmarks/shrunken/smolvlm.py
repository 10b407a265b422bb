"""Shrunken SmolVLM models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.shrunken.folder import SMALL_VISION, TEXT, write_model_folder
from benchmarks.shrunken.tokenizers import SMOLVLM_TEMPLATE, smolvlm_tokenizer

_SIZES = {"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 64}}


def smolvlm(base: str, folder: Path) -> str:
    """Write a SmolVLM model (Idefics3 is its architecture): a Llama with a SigLIP encoder."""
    from transformers import Idefics3Processor
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    tokenizer = smolvlm_tokenizer(base)
    image = Idefics3ImageProcessorPil(**_SIZES, do_image_splitting=False)
    processor = Idefics3Processor(image, tokenizer, image_seq_len=4, chat_template=SMOLVLM_TEMPLATE)
    return write_model_folder(folder, _config("Idefics3", tokenizer), processor, tokenizer)


def smolvlm2(base: str, folder: Path) -> str:
    """Write a SmolVLM2 model. Its processor needs the package num2words."""
    from transformers import SmolVLMProcessor, SmolVLMVideoProcessor
    from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

    tokenizer = smolvlm_tokenizer(base)
    processor = SmolVLMProcessor(
        SmolVLMImageProcessorPil(**_SIZES, do_image_splitting=False),
        tokenizer,
        SmolVLMVideoProcessor(**_SIZES),
        image_seq_len=4,
        chat_template=SMOLVLM_TEMPLATE,
    )
    return write_model_folder(folder, _config("SmolVLM", tokenizer), processor, tokenizer)


def _config(kind: str, tokenizer: Any) -> Any:
    import transformers

    text = transformers.LlamaConfig(**TEXT, vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id)
    return getattr(transformers, f"{kind}Config")(
        architectures=[f"{kind}ForConditionalGeneration"],
        text_config=text.to_dict(),
        vision_config={**SMALL_VISION, "image_size": 64, "patch_size": 16},
        scale_factor=2,
        image_token_id=tokenizer.image_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
