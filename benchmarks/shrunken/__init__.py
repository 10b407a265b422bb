"""Shrunken models: random weights, but the real architectures, processors and special tokens of their families.

The functions for tokenizers return a tokenizer. Each other function writes a folder that vLLM loads with
``load_format="dummy"``.
"""

from benchmarks.shrunken.documents import deepseek_ocr2, glm_ocr
from benchmarks.shrunken.gemma import gemma3, gemma3n, gemma4, gemma4_unified
from benchmarks.shrunken.kimi import kimi_k25
from benchmarks.shrunken.minicpm import minicpm_v46
from benchmarks.shrunken.mistral import mistral3
from benchmarks.shrunken.others import internvl, llama4, paddleocr_vl
from benchmarks.shrunken.qwen import (
    qwen2_audio,
    qwen3,
    qwen3_5,
    qwen3_5_moe,
    qwen3_asr,
    qwen3_vl,
    qwen3_vl_moe,
    qwen25_vl,
)
from benchmarks.shrunken.smolvlm import smolvlm, smolvlm2
from benchmarks.shrunken.tokenizers import QWEN_TEMPLATE, gemma_tokenizer, llama_tokenizer, qwen_tokenizer

__all__ = [
    "QWEN_TEMPLATE",
    "deepseek_ocr2",
    "gemma3",
    "gemma3n",
    "gemma4",
    "gemma4_unified",
    "gemma_tokenizer",
    "glm_ocr",
    "internvl",
    "kimi_k25",
    "llama4",
    "llama_tokenizer",
    "minicpm_v46",
    "mistral3",
    "paddleocr_vl",
    "qwen2_audio",
    "qwen3",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_asr",
    "qwen3_vl",
    "qwen3_vl_moe",
    "qwen25_vl",
    "qwen_tokenizer",
    "smolvlm",
    "smolvlm2",
]
