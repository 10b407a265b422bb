"""Counts the steps that working out a format takes, and stops when they are too many.

A short schema can stand for an endless one: of 30 definitions, each of which refers twice to the next, the last comes
up a billion times. Such work can't be bounded by the size of the schema, and Python can't be interrupted from outside
in any thread. So the code that follows references counts its steps.
"""

from __future__ import annotations

import time
from contextvars import ContextVar, Token
from dataclasses import dataclass, field

from daft_vllm.errors import SchemaError

MOST_STEPS = 1_000_000
"""The most steps of one format. The largest schemas of JSONSchemaBench take about 50,000."""
SECONDS = 30.0
"""How long these steps may take."""


@dataclass
class _Work:
    seconds: float
    steps: int = 0
    started: float = field(default_factory=time.monotonic)


_current: ContextVar[_Work | None] = ContextVar("work", default=None)


class limited_work:
    """Limits the steps inside the ``with`` block. A block inside another one shares the outer one's limit.

    Args:
        seconds: how long they may take.

    Raises:
        SchemaError: the steps are too many, or take too long, or call each other too deeply.
    """

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._token: Token[_Work | None] | None = None

    def __enter__(self) -> None:
        if _current.get() is None:
            self._token = _current.set(_Work(self._seconds))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._token is not None:
            _current.reset(self._token)
        if kind is not None and issubclass(kind, RecursionError):
            raise SchemaError("return_format is nested too deeply to be enforced: write it flatter.") from None


def spend(steps: int, pointer: str) -> None:
    """Count steps. Outside of ``limited_work`` nothing is counted.

    Args:
        steps: how many. One takes some microseconds.
        pointer: JSON pointer of the part that is worked on, for the message.

    Raises:
        SchemaError: they are too many, or take too long.
    """
    work = _current.get()
    if work is None:
        return
    work.steps += steps
    if work.steps > MOST_STEPS or time.monotonic() > work.started + work.seconds:
        limit = f"{MOST_STEPS:,} steps" if work.steps > MOST_STEPS else f"{work.seconds:g} seconds"
        raise SchemaError(
            f"{pointer[:200] or '/'}: return_format takes more than {limit} to work out, because its parts refer to "
            "each other in too many ways. Use fewer references and choices, or write {} (any JSON) for a part of it."
        )
