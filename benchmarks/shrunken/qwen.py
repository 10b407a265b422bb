"""Shrunken Qwen models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.shrunken.folder import TEXT, write_model_folder
from benchmarks.shrunken.tokenizers import CONTENT, QWEN_TEMPLATE, chatml_tokenizer, qwen_tokenizer

_AUDIO = {"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 64}
"""Sizes of an encoder of sounds."""
_ASR_TEMPLATE = (
    CONTENT.replace("AUDIO", "<|audio_start|><|audio_pad|><|audio_end|>")
    + """{%- for m in messages -%}
{{ '<|im_start|>' + m.role + '\n' + render(m.content) + '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}
"""
)

_QWEN_VISION = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 2,
    "out_hidden_size": TEXT["hidden_size"],
}


def qwen25_vl(base: str, folder: Path) -> str:
    """Write a Qwen2.5-VL model."""
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLProcessor, Qwen2VLVideoProcessor
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    tokenizer = qwen_tokenizer(base)
    size = {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 64}
    config = Qwen2_5_VLConfig(
        architectures=["Qwen2_5_VLForConditionalGeneration"],
        text_config={
            **TEXT,
            "vocab_size": len(tokenizer),
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "rope_parameters": {"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 1e6},
        },
        vision_config={
            **_QWEN_VISION,
            "fullatt_block_indexes": [1],
        },
        **_qwen_ids(tokenizer),
    )
    processor = Qwen2_5_VLProcessor(
        Qwen2VLImageProcessorPil(size=size), tokenizer, Qwen2VLVideoProcessor(size=size), chat_template=QWEN_TEMPLATE
    )
    return write_model_folder(folder, config, processor, tokenizer)


_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True}
LINEAR_LAYERS = {
    "head_dim": 64,  # a quarter of it is rotated
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 128,  # as in the real models: vLLM's kernels for CPUs are made for this size
    "linear_value_head_dim": 128,
}


def qwen3_vl(base: str, folder: Path) -> str:
    """Write a Qwen3-VL model."""
    return _write_vision_model(base, folder, "Qwen3VL", {}, {"deepstack_visual_indexes": [0]})


def qwen3_vl_moe(base: str, folder: Path) -> str:
    """Write a Qwen3-VL model with a mixture of experts."""
    return _write_vision_model(base, folder, "Qwen3VLMoe", _EXPERTS, {"deepstack_visual_indexes": [0]})


def qwen3_5(base: str, folder: Path) -> str:
    """Write a Qwen3.5 model: every other layer has linear attention."""
    return _write_vision_model(base, folder, "Qwen3_5", LINEAR_LAYERS, {})


def qwen3_5_moe(base: str, folder: Path) -> str:
    """Write a Qwen3.5 model with a mixture of experts."""
    experts = {**_EXPERTS, "shared_expert_intermediate_size": 64}
    return _write_vision_model(base, folder, "Qwen3_5Moe", {**LINEAR_LAYERS, **experts}, {})


def _write_vision_model(base: str, folder: Path, kind: str, text: dict[str, Any], vision: dict[str, Any]) -> str:
    import transformers
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    tokenizer = qwen_tokenizer(base)
    sizes = {"patch_size": 16, "size": {"shortest_edge": 64 * 64, "longest_edge": 32 * 32 * 64}}
    text = {**TEXT, "vocab_size": len(tokenizer), **text}
    rotated = int(text["head_dim"] * (0.25 if "layer_types" in text else 1)) // 2
    text["rope_parameters"] = {
        "rope_type": "default",
        "mrope_section": [rotated - 2 * (rotated // 3), rotated // 3, rotated // 3],
        "mrope_interleaved": True,
        "rope_theta": 1e6,
    }
    config = getattr(transformers, f"{kind}Config")(
        architectures=[f"{kind}ForConditionalGeneration"],
        text_config=text,
        vision_config={**_QWEN_VISION, "num_position_embeddings": 64, **vision},
        **_qwen_ids(tokenizer),
    )
    processor = transformers.Qwen3VLProcessor(
        Qwen2VLImageProcessorPil(**sizes),
        tokenizer,
        transformers.Qwen3VLVideoProcessor(**sizes),
        chat_template=QWEN_TEMPLATE,
    )
    return write_model_folder(folder, config, processor, tokenizer)


def qwen2_audio(base: str, folder: Path) -> str:
    """Write a Qwen2-Audio model."""
    from transformers import Qwen2AudioConfig, Qwen2AudioProcessor, WhisperFeatureExtractor

    tokenizer = qwen_tokenizer(base)
    config = Qwen2AudioConfig(
        architectures=["Qwen2AudioForConditionalGeneration"],
        text_config={**TEXT, "model_type": "qwen2", "vocab_size": len(tokenizer)},
        audio_config={**_AUDIO, "num_mel_bins": 32, "max_source_positions": 1500},
        audio_token_index=tokenizer.audio_token_id,
        dtype="float32",
    )
    processor = Qwen2AudioProcessor(WhisperFeatureExtractor(feature_size=32), tokenizer, chat_template=QWEN_TEMPLATE)
    return write_model_folder(folder, config, processor, tokenizer)


def qwen3_asr(base: str, folder: Path) -> str:
    """Write a Qwen3-ASR model, which writes down what is said."""
    from transformers import Qwen3ASRConfig, Qwen3ASRFeatureExtractor, Qwen3ASRProcessor

    tokenizer = chatml_tokenizer(
        base,
        _ASR_TEMPLATE,
        audio_token="<|audio_pad|>",
        audio_bos_token="<|audio_start|>",
        audio_eos_token="<|audio_end|>",
    )
    config = Qwen3ASRConfig(
        architectures=["Qwen3ASRForConditionalGeneration"],
        text_config={
            **TEXT,
            "model_type": "qwen3",
            "vocab_size": len(tokenizer),
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [6, 5, 5]},
            "tie_word_embeddings": True,
        },
        audio_config={**_AUDIO, "downsample_hidden_size": 16, "output_dim": TEXT["hidden_size"]},
        audio_token_id=tokenizer.audio_token_id,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        dtype="float32",
    )
    processor = Qwen3ASRProcessor(Qwen3ASRFeatureExtractor(feature_size=128), tokenizer, chat_template=_ASR_TEMPLATE)
    return write_model_folder(folder, config, processor, tokenizer)


def qwen3(base: str, folder: Path) -> str:
    """Write a Qwen3 model, which can think before it answers."""
    from transformers import Qwen3Config

    tokenizer = qwen_tokenizer(base)
    config = Qwen3Config(
        architectures=["Qwen3ForCausalLM"],
        **TEXT,
        vocab_size=len(tokenizer),
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        dtype="float32",
    )
    return write_model_folder(folder, config, None, tokenizer)


def _qwen_ids(tokenizer: Any) -> dict[str, Any]:
    named = {
        "image_token_id": "<|image_pad|>",
        "video_token_id": "<|video_pad|>",
        "vision_start_token_id": "<|vision_start|>",
        "vision_end_token_id": "<|vision_end|>",
    }
    ids = {name: tokenizer.convert_tokens_to_ids(token) for name, token in named.items()}
    return {**ids, "eos_token_id": tokenizer.eos_token_id, "dtype": "float32"}
