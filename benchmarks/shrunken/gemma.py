"""Shrunken Gemma models."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from benchmarks.shrunken.folder import SMALL_VISION, TEXT, write_model_folder
from benchmarks.shrunken.tokenizers import GEMMA_3N_TEMPLATE, gemma_tokenizer


def gemma3(base: str, folder: Path, *, tokens: int = 4) -> str:
    """Write a Gemma-3 model that makes ``tokens`` tokens, a square number, of each image."""
    from transformers import Gemma3Config, Gemma3Processor, Gemma3TextConfig, SiglipVisionConfig
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

    side = 28 * math.isqrt(tokens)
    tokenizer = gemma_tokenizer(base)
    config = Gemma3Config(
        architectures=["Gemma3ForConditionalGeneration"],
        text_config=Gemma3TextConfig(**TEXT, vocab_size=len(tokenizer), sliding_window=512),
        vision_config=SiglipVisionConfig(**SMALL_VISION, image_size=side, patch_size=14),
        mm_tokens_per_image=tokens,
        image_token_index=tokenizer.image_token_id,
        boi_token_index=tokenizer.boi_token_id,
        eoi_token_index=tokenizer.eoi_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=[tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<end_of_turn>")],
        dtype="float32",
    )
    image = Gemma3ImageProcessorPil(size={"height": side, "width": side}, image_seq_length=tokens)
    return write_model_folder(folder, config, Gemma3Processor(image, tokenizer, image_seq_length=tokens), tokenizer)


_SOUND_TOKENS = {"audio_token": "<audio_soft_token>", "boa_token": "<start_of_audio>", "eoa_token": "<end_of_audio>"}


def gemma3n(base: str, folder: Path) -> str:
    """Write a Gemma-3n model: a MobileNet, which needs the package timm, and a conformer for sounds.

    Both are as wide as in the real models, because timm and vLLM fix their sizes. The weights, 0.8 GB, are written too:
    with those of ``load_format="dummy"`` the many layers of the MobileNet would put out zeros, and the layers after it
    would divide by them.
    """
    import torch
    from transformers import (
        Gemma3nAudioFeatureExtractor,
        Gemma3nConfig,
        Gemma3nForConditionalGeneration,
        Gemma3nProcessor,
    )
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    tokenizer = gemma_tokenizer(base, GEMMA_3N_TEMPLATE, **_SOUND_TOKENS)
    config = Gemma3nConfig(
        architectures=["Gemma3nForConditionalGeneration"],
        text_config={**_sharing_text(tokenizer), "laurel_rank": 8},
        vision_config={"vocab_offset": len(tokenizer)},
        audio_config={"conf_num_hidden_layers": 1, "vocab_offset": len(tokenizer) + 128},
        **_gemma_ids(tokenizer),
    )
    processor = Gemma3nProcessor(
        Gemma3nAudioFeatureExtractor(),
        SiglipImageProcessorPil(size={"height": 256, "width": 256}),
        tokenizer,
        chat_template=GEMMA_3N_TEMPLATE,
    )
    Gemma3nForConditionalGeneration(config).to(torch.bfloat16).save_pretrained(folder)
    return write_model_folder(folder, config, processor, tokenizer)


def gemma4(base: str, folder: Path) -> str:
    """Write a Gemma 4 model."""
    from transformers import Gemma4AudioFeatureExtractor, Gemma4Config, Gemma4Processor, Gemma4VideoProcessor
    from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

    tokenizer = gemma_tokenizer(base, GEMMA_3N_TEMPLATE, **_SOUND_TOKENS)
    config = Gemma4Config(
        architectures=["Gemma4ForConditionalGeneration"],
        text_config={**_sharing_text(tokenizer), "global_head_dim": 64},
        vision_config={
            **SMALL_VISION,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "position_embedding_size": 1024,
            "default_output_length": 70,
        },
        audio_config={"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "output_proj_dims": 64},
        **_gemma_ids(tokenizer),
    )
    processor = Gemma4Processor(
        Gemma4AudioFeatureExtractor(),
        Gemma4ImageProcessorPil(max_soft_tokens=70),
        tokenizer,
        Gemma4VideoProcessor(),
        image_seq_length=70,
        chat_template=GEMMA_3N_TEMPLATE,
    )
    return write_model_folder(folder, config, processor, tokenizer)


def gemma4_unified(base: str, folder: Path) -> str:
    """Write a Gemma 4 model without encoders, as the one of 12B: a matrix each for patches and for sounds."""
    from transformers import (
        Gemma4UnifiedAudioFeatureExtractor,
        Gemma4UnifiedConfig,
        Gemma4UnifiedImageProcessor,
        Gemma4UnifiedProcessor,
        Gemma4UnifiedVideoProcessor,
    )

    tokenizer = gemma_tokenizer(base, GEMMA_3N_TEMPLATE, **_SOUND_TOKENS)
    config = Gemma4UnifiedConfig(
        architectures=["Gemma4UnifiedForConditionalGeneration"],
        text_config={
            **TEXT,
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "vocab_size": len(tokenizer),
            "sliding_window": 512,
            "global_head_dim": 64,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
        },
        vision_config={"mm_embed_dim": 64, "mm_posemb_size": 256, "output_proj_dims": 64, "num_soft_tokens": 70},
        audio_config={},
        **_gemma_ids(tokenizer),
    )
    processor = Gemma4UnifiedProcessor(
        Gemma4UnifiedAudioFeatureExtractor(),
        Gemma4UnifiedImageProcessor(max_soft_tokens=70),
        tokenizer,
        Gemma4UnifiedVideoProcessor(),
        image_seq_length=70,
        chat_template=GEMMA_3N_TEMPLATE,
    )
    return write_model_folder(folder, config, processor, tokenizer)


def _sharing_text(tokenizer: Any) -> dict[str, Any]:
    """Return a text config with embeddings for each layer, in which the last layers use the caches of earlier ones."""
    return {
        **TEXT,
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "vocab_size": len(tokenizer),
        "vocab_size_per_layer_input": len(tokenizer),
        "hidden_size_per_layer_input": 32,
        "num_kv_shared_layers": 2,
        "sliding_window": 512,
    }


def _gemma_ids(tokenizer: Any) -> dict[str, Any]:
    named = ("boi_token", "eoi_token", "image_token", "boa_token", "eoa_token", "audio_token")
    ids = {f"{name}_id": getattr(tokenizer, f"{name}_id") for name in named}
    ends = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<end_of_turn>")]
    return {**ids, "bos_token_id": tokenizer.bos_token_id, "eos_token_id": ends, "dtype": "float32"}
