"""SmolLM2's tokenizer with the special tokens and chat templates of other families.

The chat templates are short versions: they do with roles, texts and media what the families' own templates do.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

CONTENT = """{%- macro render(content) -%}
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
"""Jinja's ``render``, for the content of a message. Replace IMAGE and AUDIO by a family's placeholders."""
_GEMMA_TURNS = """{{ bos_token }}
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
GEMMA_TEMPLATE = CONTENT.replace("IMAGE", "<start_of_image>") + _GEMMA_TURNS
GEMMA_3N_TEMPLATE = CONTENT.replace("IMAGE", "<image_soft_token>").replace("AUDIO", "<audio_soft_token>") + _GEMMA_TURNS
QWEN_TEMPLATE = (
    CONTENT.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>").replace(
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
LLAMA_4_TEMPLATE = (
    CONTENT.replace("IMAGE", "<|image|>")
    + """{{ bos_token }}
{%- for m in messages -%}
{{ '<|header_start|>' + m.role + '<|header_end|>\n\n' + render(m.content) + '<|eot|>' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|header_start|>assistant<|header_end|>\n\n' }}{%- endif -%}
"""
)
INTERNVL_TEMPLATE = (
    CONTENT.replace("IMAGE", "<IMG_CONTEXT>\n")
    + """{%- for m in messages -%}
{{ '<|im_start|>' + m.role + '\n' + render(m.content) + '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}
"""
)
MISTRAL_TEMPLATE = (
    CONTENT.replace("IMAGE", "[IMG]")
    + """{{ bos_token }}
{%- for m in messages -%}
{%- if m.role == 'system' -%}{{ '[SYSTEM_PROMPT]' + render(m.content) + '[/SYSTEM_PROMPT]' }}
{%- elif m.role == 'user' -%}{{ '[INST]' + render(m.content) + '[/INST]' }}
{%- else -%}{{ render(m.content) + eos_token }}
{%- endif -%}
{%- endfor -%}
"""
)
KIMI_TEMPLATE = (
    CONTENT.replace("IMAGE", "<|media_begin|>image<|media_content|><|media_pad|><|media_end|>")
    + """{%- for m in messages -%}
{{ '<|im_' + m.role + '|>' + m.role + '<|im_middle|>' + render(m.content) + '<|im_end|>' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_assistant|>assistant<|im_middle|>' }}
{{- '<think></think>' if thinking is defined and thinking is false else '<think>' }}
{%- endif -%}
"""
)
PADDLEOCR_TEMPLATE = (
    CONTENT.replace("IMAGE", "<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>")
    + """{{ bos_token }}
{%- for m in messages -%}
{{ ('Assistant' if m.role == 'assistant' else 'User') + ': ' + render(m.content) + '\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ 'Assistant: ' }}{%- endif -%}
"""
)
SMOLVLM_TEMPLATE = (
    CONTENT.replace("IMAGE", "<image>")
    + """{{ bos_token }}
{%- for m in messages -%}
{{ m.role | capitalize + ': ' + render(m.content) + '<end_of_utterance>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ 'Assistant:' }}{%- endif -%}
"""
)


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


def gemma_tokenizer(base: str, template: str = GEMMA_TEMPLATE, **named: str) -> Any:
    """Return a tokenizer with Gemma-3's special tokens, and further ones by name."""
    from tokenizers import AddedToken

    tokenizer = tokenizer_with(
        base,
        ["<start_of_turn>", "<end_of_turn>"],
        bos="<bos>",
        eos="<eos>",
        template=template,
        boi_token="<start_of_image>",
        eoi_token="<end_of_image>",
        image_token="<image_soft_token>",
        **named,
    )
    # vLLM's processor for Gemma merges line breaks around an image. It looks up these tokens, which Gemma has.
    tokenizer.add_tokens([AddedToken("\n" * n, normalized=False) for n in range(1, 5)])
    return tokenizer


def chatml_tokenizer(base: str, template: str, special: Sequence[str] = (), **named: str) -> Any:
    """Return a tokenizer with ChatML's special tokens, and further ones, some of them by name."""
    return tokenizer_with(
        base, ["<|im_start|>", *special], bos="<|endoftext|>", eos="<|im_end|>", template=template, **named
    )


def qwen_tokenizer(base: str) -> Any:
    """Return a tokenizer with Qwen's special tokens and chat template."""
    from tokenizers import AddedToken

    tokenizer = chatml_tokenizer(
        base,
        QWEN_TEMPLATE,
        ["<|vision_start|>", "<|vision_end|>", "<|audio_bos|>", "<|audio_eos|>"],
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


def smolvlm_tokenizer(base: str) -> Any:
    """Return a tokenizer with SmolVLM's special tokens and chat template."""
    return tokenizer_with(
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


def mistral_tokenizer(base: str) -> Any:
    """Return a tokenizer with Mistral's special tokens and chat template."""
    special = ["[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[IMG_BREAK]", "[IMG_END]"]
    return tokenizer_with(base, special, bos="<s>", eos="</s>", template=MISTRAL_TEMPLATE, image_token="[IMG]")


def llama_4_tokenizer(base: str) -> Any:
    """Return a tokenizer with Llama 4's special tokens and chat template."""
    names = ("header_start", "header_end", "image", "image_start", "image_end", "patch")
    special = [f"<|{name}|>" for name in (*names, "tile_x_separator", "tile_y_separator")]
    return tokenizer_with(base, special, bos="<|begin_of_text|>", eos="<|eot|>", template=LLAMA_4_TEMPLATE)


def internvl_tokenizer(base: str) -> Any:
    """Return a tokenizer with InternVL's special tokens and chat template."""
    return chatml_tokenizer(
        base,
        INTERNVL_TEMPLATE,
        start_image_token="<img>",
        end_image_token="</img>",
        context_image_token="<IMG_CONTEXT>",
        video_token="<video>",
    )


def paddleocr_tokenizer(base: str) -> Any:
    """Return a tokenizer with PaddleOCR-VL's special tokens and chat template."""
    return tokenizer_with(
        base,
        ["<|IMAGE_START|>", "<|IMAGE_END|>", "<|video_pad|>"],
        bos="<|begin_of_sentence|>",
        eos="</s>",
        template=PADDLEOCR_TEMPLATE,
        image_token="<|IMAGE_PLACEHOLDER|>",
    )
