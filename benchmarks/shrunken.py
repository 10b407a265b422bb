"""Shrunken models with random weights, and the real architectures, processors and special tokens of their families.

Each function writes a folder that vLLM loads with ``load_format="dummy"``. The chat templates are cut down to what the
families' own do with roles, texts and media.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_CONTENT = """{%- macro render(content) -%}
{%- if content is string -%}{{ content | trim }}
{%- else -%}
{%- for item in content -%}
{%- if item.type == 'image' -%}IMAGE
{%- elif item.type == 'audio' -%}AUDIO
{%- else -%}{{ item.text | trim }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
"""
GEMMA_TEMPLATE = (
    _CONTENT.replace("IMAGE", "<start_of_image>")
    + """{{ bos_token }}
{%- set first = '' -%}
{%- if messages[0].role == 'system' -%}
{%- set first = render(messages[0].content) + '\n\n' -%}
{%- set messages = messages[1:] -%}
{%- endif -%}
{%- for m in messages -%}
{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + (first if loop.first else '') }}
{{- render(m.content) + '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}
"""
)
QWEN_TEMPLATE = (
    _CONTENT.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>").replace(
        "AUDIO", "<|audio_bos|><|AUDIO|><|audio_eos|>"
    )
    + """{%- for m in messages -%}
{{ '<|im_start|>' + m.role + '\n' + render(m.content) + '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and enable_thinking is false -%}{{ '<think>\n\n</think>\n\n' }}{%- endif -%}
{%- endif -%}
"""
)
LLAMA_TEMPLATE = """{{ bos_token }}
{%- for m in messages -%}
{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif -%}
"""
SMOLVLM_TEMPLATE = (
    _CONTENT.replace("IMAGE", "<image>")
    + """{{ bos_token }}
{%- for m in messages -%}
{{ m.role | capitalize + ': ' + render(m.content) + '<end_of_utterance>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ 'Assistant:' }}{%- endif -%}
"""
)
_TEXT = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 4096,
}
_SMALL_VISION = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
_QWEN_VISION = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 2,
    "out_hidden_size": _TEXT["hidden_size"],
}


def tokenizer_with(base: str, special: Sequence[str], *, bos: str, eos: str, template: str, **named: str) -> Any:
    """Return SmolLM2's tokenizer with other special tokens and another chat template."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(Path(base) / "tokenizer.json"),
        bos_token=bos,
        eos_token=eos,
        pad_token=eos,
        extra_special_tokens=named,
    )
    tokenizer.add_special_tokens({"additional_special_tokens": list(special)}, replace_extra_special_tokens=False)
    tokenizer.chat_template = template
    return tokenizer


def gemma_tokenizer(base: str) -> Any:
    """Return a tokenizer with Gemma-3's special tokens and chat template."""
    from tokenizers import AddedToken

    tokenizer = tokenizer_with(
        base,
        ["<start_of_turn>", "<end_of_turn>"],
        bos="<bos>",
        eos="<eos>",
        template=GEMMA_TEMPLATE,
        boi_token="<start_of_image>",
        eoi_token="<end_of_image>",
        image_token="<image_soft_token>",
    )
    # vLLM's processor for Gemma joins line ends around an image, and looks for these tokens of Gemma's.
    tokenizer.add_tokens([AddedToken("\n" * n, normalized=False) for n in range(1, 5)])
    return tokenizer


def qwen_tokenizer(base: str) -> Any:
    """Return a tokenizer with Qwen's special tokens and chat template."""
    from tokenizers import AddedToken

    tokenizer = tokenizer_with(
        base,
        ["<|im_start|>", "<|vision_start|>", "<|vision_end|>", "<|audio_bos|>", "<|audio_eos|>"],
        bos="<|endoftext|>",
        eos="<|im_end|>",
        template=QWEN_TEMPLATE,
        image_token="<|image_pad|>",
        video_token="<|video_pad|>",
        audio_token="<|AUDIO|>",
        audio_bos_token="<|audio_bos|>",
        audio_eos_token="<|audio_eos|>",
    )
    names = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
    tokenizer.add_tokens([AddedToken(name, normalized=False, special=False) for name in names])
    return tokenizer


def llama_tokenizer(base: str) -> Any:
    """Return a tokenizer with Llama-3's special tokens and chat template."""
    special = ["<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|python_tag|>"]
    return tokenizer_with(base, special, bos="<|begin_of_text|>", eos="<|eot_id|>", template=LLAMA_TEMPLATE)


def gemma3(base: str, folder: Path, *, tokens: int = 4) -> str:
    """Write a Gemma-3 image model with so many ``tokens`` an image, a square number."""
    from transformers import Gemma3Config, Gemma3Processor, Gemma3TextConfig, SiglipVisionConfig
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

    side = 28 * math.isqrt(tokens)
    tokenizer = gemma_tokenizer(base)
    config = Gemma3Config(
        architectures=["Gemma3ForConditionalGeneration"],
        text_config=Gemma3TextConfig(**_TEXT, vocab_size=len(tokenizer), sliding_window=512),
        vision_config=SiglipVisionConfig(**_SMALL_VISION, image_size=side, patch_size=14),
        mm_tokens_per_image=tokens,
        image_token_index=tokenizer.image_token_id,
        boi_token_index=tokenizer.boi_token_id,
        eoi_token_index=tokenizer.eoi_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=[tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<end_of_turn>")],
        dtype="float32",
    )
    image = Gemma3ImageProcessorPil(size={"height": side, "width": side}, image_seq_length=tokens)
    return _written(folder, config, Gemma3Processor(image, tokenizer, image_seq_length=tokens), tokenizer)


def qwen25_vl(base: str, folder: Path) -> str:
    """Write a Qwen2.5-VL model."""
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLProcessor, Qwen2VLVideoProcessor
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    tokenizer = qwen_tokenizer(base)
    size = {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 64}
    config = Qwen2_5_VLConfig(
        architectures=["Qwen2_5_VLForConditionalGeneration"],
        text_config={
            **_TEXT,
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
    return _written(folder, config, processor, tokenizer)


def qwen3_vl(base: str, folder: Path) -> str:
    """Write a Qwen3-VL model."""
    from transformers import Qwen3VLConfig, Qwen3VLProcessor, Qwen3VLVideoProcessor
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    tokenizer = qwen_tokenizer(base)
    size = {"shortest_edge": 64 * 64, "longest_edge": 32 * 32 * 64}
    config = Qwen3VLConfig(
        architectures=["Qwen3VLForConditionalGeneration"],
        text_config={
            **_TEXT,
            "vocab_size": len(tokenizer),
            "rope_parameters": {
                "rope_type": "default",
                "mrope_section": [6, 5, 5],
                "mrope_interleaved": True,
                "rope_theta": 1e6,
            },
        },
        vision_config={
            **_QWEN_VISION,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0],
        },
        **_qwen_ids(tokenizer),
    )
    vision = {"patch_size": 16, "size": size}
    processor = Qwen3VLProcessor(
        Qwen2VLImageProcessorPil(**vision), tokenizer, Qwen3VLVideoProcessor(**vision), chat_template=QWEN_TEMPLATE
    )
    return _written(folder, config, processor, tokenizer)


def smolvlm(base: str, folder: Path) -> str:
    """Write a SmolVLM model (Idefics3 is its architecture): a Llama with a SigLIP encoder."""
    from transformers import Idefics3Config, Idefics3Processor, LlamaConfig
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    tokenizer = tokenizer_with(
        base,
        ["<global-img>", "<row_1_col_1>"],
        bos="<|im_start|>",
        eos="<end_of_utterance>",
        template=SMOLVLM_TEMPLATE,
        image_token="<image>",
        fake_image_token="<fake_token_around_image>",
        global_image_token="<global-img>",
        end_of_utterance_token="<end_of_utterance>",
    )
    text = LlamaConfig(**_TEXT, vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id)
    config = Idefics3Config(
        architectures=["Idefics3ForConditionalGeneration"],
        text_config=text.to_dict(),
        vision_config={**_SMALL_VISION, "image_size": 64, "patch_size": 16},
        scale_factor=2,
        image_token_id=tokenizer.image_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    sizes = {"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 64}}
    processor = Idefics3Processor(
        Idefics3ImageProcessorPil(**sizes, do_image_splitting=False),
        tokenizer,
        image_seq_len=4,
        chat_template=SMOLVLM_TEMPLATE,
    )
    return _written(folder, config, processor, tokenizer)


def qwen2_audio(base: str, folder: Path) -> str:
    """Write a Qwen2-Audio model."""
    from transformers import Qwen2AudioConfig, Qwen2AudioProcessor, WhisperFeatureExtractor

    tokenizer = qwen_tokenizer(base)
    config = Qwen2AudioConfig(
        architectures=["Qwen2AudioForConditionalGeneration"],
        text_config={**_TEXT, "model_type": "qwen2", "vocab_size": len(tokenizer)},
        audio_config={
            "d_model": 32,
            "encoder_layers": 2,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 64,
            "num_mel_bins": 32,
            "max_source_positions": 1500,
        },
        audio_token_index=tokenizer.audio_token_id,
        dtype="float32",
    )
    processor = Qwen2AudioProcessor(WhisperFeatureExtractor(feature_size=32), tokenizer, chat_template=QWEN_TEMPLATE)
    return _written(folder, config, processor, tokenizer)


def qwen3(base: str, folder: Path) -> str:
    """Write a Qwen3 model, one that thinks."""
    from transformers import Qwen3Config

    tokenizer = qwen_tokenizer(base)
    config = Qwen3Config(
        architectures=["Qwen3ForCausalLM"],
        **_TEXT,
        vocab_size=len(tokenizer),
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        dtype="float32",
    )
    return _written(folder, config, None, tokenizer)


def _qwen_ids(tokenizer: Any) -> dict[str, Any]:
    named = {
        "image_token_id": "<|image_pad|>",
        "video_token_id": "<|video_pad|>",
        "vision_start_token_id": "<|vision_start|>",
        "vision_end_token_id": "<|vision_end|>",
    }
    ids = {name: tokenizer.convert_tokens_to_ids(token) for name, token in named.items()}
    return {**ids, "eos_token_id": tokenizer.eos_token_id, "dtype": "float32"}


def _written(folder: Path, config: Any, processor: Any, tokenizer: Any) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if processor is not None:
        processor.save_pretrained(folder)
    written = folder / "tokenizer_config.json"
    data = json.loads(written.read_text(encoding="utf-8"))
    data.pop("tokenizer_file", None)
    written.write_text(json.dumps(data), encoding="utf-8")
    return str(folder)
