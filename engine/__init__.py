"""vLLM and nothing of Daft: requests in, outcomes out. Importing this package imports neither vLLM nor torch."""

from daft_vllm.engine.constraints.constraint import Constraint
from daft_vllm.engine.offline import OfflineEngine
from daft_vllm.engine.requests.outcome import ErrorValue, Outcome
from daft_vllm.engine.requests.request import Request
from daft_vllm.engine.requests.sampling import SamplingOptions
from daft_vllm.engine.requests.stats import EngineStats
from daft_vllm.engine.setup.config import EngineConfig

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
