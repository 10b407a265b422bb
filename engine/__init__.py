"""vLLM and nothing of Daft: requests in, outcomes out. Importing this package imports neither vLLM nor torch."""

from daft_vllm.engine.config import EngineConfig
from daft_vllm.engine.offline import OfflineEngine
from daft_vllm.engine.request import Constraint, ErrorValue, Outcome, Request
from daft_vllm.engine.sampling import SamplingOptions
from daft_vllm.engine.stats import EngineStats

__all__ = [
    "Constraint",
    "EngineConfig",
    "EngineStats",
    "ErrorValue",
    "OfflineEngine",
    "Outcome",
    "Request",
    "SamplingOptions",
]
