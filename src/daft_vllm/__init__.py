"""daft-vllm: self-hosted, offline vLLM inference as a Daft column function.

Importing this package is quick: Daft, vLLM and torch are imported when they are first needed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from daft_vllm.engine import Constraint, EngineConfig, EngineStats, OfflineEngine, Outcome, Request, SamplingOptions
    from daft_vllm.errors import DaftVLLMError
    from daft_vllm.tuning.tune import tuned_args
    from daft_vllm.udf import close_engines, prompt, shared_first
    from daft_vllm.udf.answers.formats import Choice, Grammar, Json, PerRow, Regex, Tools
    from daft_vllm.udf.check import check
    from daft_vllm.udf.columns.files import FileAccess
    from daft_vllm.udf.columns.parts import audio, document, image
    from daft_vllm.udf.columns.template import template
    from daft_vllm.udf.provider import Provider

_HOMES = {
    "Choice": "daft_vllm.udf.answers.formats",
    "Constraint": "daft_vllm.engine",
    "DaftVLLMError": "daft_vllm.errors",
    "EngineConfig": "daft_vllm.engine",
    "EngineStats": "daft_vllm.engine",
    "FileAccess": "daft_vllm.udf.columns.files",
    "Grammar": "daft_vllm.udf.answers.formats",
    "Json": "daft_vllm.udf.answers.formats",
    "OfflineEngine": "daft_vllm.engine",
    "Outcome": "daft_vllm.engine",
    "PerRow": "daft_vllm.udf.answers.formats",
    "Provider": "daft_vllm.udf.provider",
    "Regex": "daft_vllm.udf.answers.formats",
    "Request": "daft_vllm.engine",
    "SamplingOptions": "daft_vllm.engine",
    "Tools": "daft_vllm.udf.answers.formats",
    "audio": "daft_vllm.udf.columns.parts",
    "check": "daft_vllm.udf.check",
    "close_engines": "daft_vllm.udf",
    "document": "daft_vllm.udf.columns.parts",
    "image": "daft_vllm.udf.columns.parts",
    "prompt": "daft_vllm.udf",
    "shared_first": "daft_vllm.udf",
    "template": "daft_vllm.udf.columns.template",
    "tuned_args": "daft_vllm.tuning.tune",
}

__all__ = [
    "Choice",
    "Constraint",
    "DaftVLLMError",
    "EngineConfig",
    "EngineStats",
    "FileAccess",
    "Grammar",
    "Json",
    "OfflineEngine",
    "Outcome",
    "PerRow",
    "Provider",
    "Regex",
    "Request",
    "SamplingOptions",
    "Tools",
    "audio",
    "check",
    "close_engines",
    "document",
    "image",
    "prompt",
    "shared_first",
    "template",
    "tuned_args",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
