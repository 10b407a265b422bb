"""The public names, and where they are defined. What runs and what type checkers see are made from this one list."""

from .engine.constraints.constraint import Constraint as Constraint
from .engine.offline import OfflineEngine as OfflineEngine
from .engine.requests.outcome import Outcome as Outcome
from .engine.requests.request import Request as Request
from .engine.requests.sampling import SamplingOptions as SamplingOptions
from .engine.requests.stats import EngineStats as EngineStats
from .engine.setup.config import EngineConfig as EngineConfig
from .errors import DaftVLLMError as DaftVLLMError
from .tuning.tune import tuned_args as tuned_args
from .udf.answers.formats import Choice as Choice
from .udf.answers.formats import Grammar as Grammar
from .udf.answers.formats import Json as Json
from .udf.answers.formats import PerRow as PerRow
from .udf.answers.formats import Regex as Regex
from .udf.answers.formats import Tools as Tools
from .udf.check import check as check
from .udf.columns.files import FileAccess as FileAccess
from .udf.columns.parts import audio as audio
from .udf.columns.parts import document as document
from .udf.columns.parts import image as image
from .udf.columns.shared_first import shared_first as shared_first
from .udf.columns.template import template as template
from .udf.partitions import partition_by_prefix as partition_by_prefix
from .udf.prompt import prompt as prompt
from .udf.provider import Provider as Provider
from .udf.worker.engines import close_engines as close_engines

__version__: str
