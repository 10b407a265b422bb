"""Every exception that daft-vllm raises on purpose.

Each message says what was seen and what to do next::

    DaftVLLMError
    ├── OptionError            an option is unknown, out of range or contradicts another (also a ValueError)
    ├── SchemaError            a return format cannot be used (also a ValueError)
    ├── MissingPackageError    an optional package is not installed (also an ImportError)
    ├── ModelError             the model cannot be found, or lacks something the job needs
    ├── DeviceError            not enough GPUs for the engines asked for
    ├── EngineError            vLLM's engine
    │   ├── EngineStartError   did not start
    │   ├── EngineDiedError    died, or stopped making progress, with rows unanswered
    │   └── EngineClosedError  was closed
    ├── StoreError             a store of answers can't be read or written, or belongs to another job
    ├── OutputError            rows can't be written to the output: the disk is full, for example
    └── RowError               a row failed and ``on_error="raise"`` was asked for

A worker process pickles its errors to send them, so each has its message as its only argument.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DaftVLLMError(Exception):
    """Root of every error raised on purpose by daft-vllm."""


class OptionError(DaftVLLMError, ValueError):
    """An option is unknown, out of range, or contradicts another one."""


class SchemaError(DaftVLLMError, ValueError):
    """A return format that cannot be turned into a constraint and a column type."""


class MissingPackageError(DaftVLLMError, ImportError):
    """An optional package is needed and not installed."""


class ModelError(DaftVLLMError):
    """The model cannot be found, or lacks something that the job needs (a chat template, for example)."""


class DeviceError(DaftVLLMError):
    """More GPUs are asked for than are visible and free."""


class EngineError(DaftVLLMError):
    """Something went wrong with vLLM's engine as a whole, rather than with one row."""


class EngineStartError(EngineError):
    """vLLM's engine did not start."""


class EngineDiedError(EngineError):
    """vLLM's engine died or stopped making progress while rows were waiting for it."""


class EngineClosedError(EngineError):
    """The engine was closed before rows were given to it, or before they were answered."""


class StoreError(DaftVLLMError):
    """A store of answers can't be read or written, or belongs to another job."""


class OutputError(DaftVLLMError):
    """Rows can't be written to the output, because the disk is full, for example."""


class RowError(DaftVLLMError):
    """At least one row failed and the caller asked for failures to be raised."""


def suggest(name: str, known: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for the known name nearest to ``name`` in any case, or an empty string."""
    by_fold = {one.strip().casefold(): one for one in known}
    near = difflib.get_close_matches(name.strip().casefold(), by_fold, n=1)
    return f" Did you mean {by_fold[near[0]]!r}?" if near else ""
