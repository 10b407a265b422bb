"""Daft and nothing of vLLM's internals: columns in, columns out."""

from daft_vllm.udf.columns.shared_first import SharedFirst, shared_first
from daft_vllm.udf.prompt import prompt
from daft_vllm.udf.worker.engines import close_engines

__all__ = ["SharedFirst", "close_engines", "prompt", "shared_first"]
