"""Daft and nothing of vLLM's internals: columns in, columns out."""

from daft_vllm.udf.prompt import prompt

__all__ = ["prompt"]
