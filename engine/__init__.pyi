"""The names of the engine, and where they are defined."""

from .constraints.constraint import Constraint as Constraint
from .offline import OfflineEngine as OfflineEngine
from .requests.outcome import ErrorValue as ErrorValue
from .requests.outcome import Outcome as Outcome
from .requests.request import Request as Request
from .requests.sampling import SamplingOptions as SamplingOptions
from .requests.stats import EngineFigures as EngineFigures
from .requests.stats import EngineStats as EngineStats
from .setup.config import EngineConfig as EngineConfig
