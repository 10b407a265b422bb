"""Daft and nothing of vLLM's internals: columns in, columns out."""

from daft_vllm.udf.engines import close_engines
from daft_vllm.udf.prompt import prompt
from daft_vllm.udf.shared_first import SharedFirst, shared_first

__all__ = ["SharedFirst", "close_engines", "prompt", "shared_first"]
