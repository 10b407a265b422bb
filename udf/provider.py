"""daft-vllm behind Daft's own ``daft.functions.prompt``."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import daft
from daft import DataType, Series
from daft.ai.protocols import Prompter, PrompterDescriptor
from daft.ai.provider import Provider as DaftProvider
from daft.ai.typing import UDFOptions

from daft_vllm.errors import OptionError
from daft_vllm.udf.answers.formats import PerRow
from daft_vllm.udf.answers.tools import CallFormat
from daft_vllm.udf.columns.parts import PartKind
from daft_vllm.udf.options import PromptOptions, is_column
from daft_vllm.udf.planning.plan import spec_of
from daft_vllm.udf.prompt import BATCH_SIZE
from daft_vllm.udf.worker.actor import PromptActor
from daft_vllm.udf.worker.spec import PromptSpec

_NOT_HERE = {
    "turns": "more columns than Daft's prompt hands on",
    "details": "a column of another type than Daft's prompt makes of return_format",
    "use_process": "a choice that Daft's prompt makes itself",
    "batch_size": "a choice that Daft's prompt makes itself",
    "max_retries": "Daft's name for what is called retries here",
}
_ON_ERROR = {"log": "null", "ignore": "null"}
"""Daft's names for leaving a failed row null."""


class Provider(DaftProvider):
    """Answers ``daft.functions.prompt(..., provider=Provider(...))`` with vLLM in this query.

    Use it for code that is written for Daft's function; ``daft_vllm.prompt`` does more (``details``, ``turns``, options
    by row), and hands batches on in place of rows. Rows that fail are null and logged unless ``on_error="raise"``. The
    column's type is the one that Daft makes of ``return_format``: a string column, of JSON where it isn't text, or one
    of Python objects (of a dataclass, a ``Decimal``) where Daft has no other; numbers in a prompt are told as Python
    has them.

    Args:
        name: what sessions call it. Default ``"daft-vllm"``.
        **options: defaults for every prompt, by the names of ``daft_vllm.prompt``: ``model``, ``engine_args``,
            ``gpus``, sampling options and so on. On Ray, ``max_concurrency`` is the number of engines.

    Raises:
        OptionError: an option is unknown, or not possible through Daft's function.
    """

    def __init__(self, name: str | None = None, **options: Any) -> None:
        self._name = name or "daft-vllm"
        self._options = options
        self.get_prompter()  # finds what is wrong with the options

    @property
    def name(self) -> str:
        """What sessions call it."""
        return self._name

    def get_prompter(
        self,
        model: str | None = None,
        return_format: Any | None = None,
        system_message: str | None = None,
        **options: Any,
    ) -> PrompterDescriptor:
        """Return what Daft makes actors of; see ``daft_vllm.prompt`` for the arguments, and for what is raised."""
        given = {**self._options, **options}
        for named, value in (("model", model), ("system_message", system_message)):
            if value is not None:
                given[named] = value
        for option in given:
            if option in _NOT_HERE:
                raise OptionError(f"{option} is {_NOT_HERE[option]}: use daft_vllm.prompt(...).")
            if is_column(given[option]):
                raise OptionError(
                    f"{option} is a column, which Daft's prompt can't hand on: use daft_vllm.prompt(...)."
                )
        if isinstance(return_format, PerRow):
            raise OptionError("PerRow has a column, which Daft's prompt can't hand on: use daft_vllm.prompt(...).")
        if (on_error := given.get("on_error")) in _ON_ERROR:
            given["on_error"] = _ON_ERROR[on_error]
        chosen = PromptOptions.of({**given, "return_format": return_format, "details": True})
        on_ray = daft.get_or_infer_runner_type() == "ray"
        if chosen.max_concurrency > 1 and not on_ray:
            raise OptionError("through Daft's prompt one engine runs in the driver: use daft_vllm.prompt(...), or Ray.")
        spec = spec_of(chosen, ["auto"], use_process=on_ray)
        return _Descriptor(self._name, chosen.model, spec, _makes_values(return_format), chosen.max_concurrency)


@dataclass
class _Descriptor(PrompterDescriptor):
    provider: str
    model: str
    spec: PromptSpec
    makes_values: bool
    engines: int

    def get_provider(self) -> str:
        return self.provider

    def get_model(self) -> str:
        return self.model

    def get_options(self) -> dict[str, Any]:
        return {}

    def get_udf_options(self) -> UDFOptions:
        # Retries are the actor's; what it raises is meant to end the query.
        gpus: Any = self.spec.engine.gpus
        concurrency = self.engines if daft.get_or_infer_runner_type() == "ray" else None
        return UDFOptions(concurrency=concurrency, num_gpus=gpus, max_retries=0, on_error="raise")

    def instantiate(self) -> Prompter:
        return _RowPrompter(self.spec, makes_values=self.makes_values)


_Row = tuple[tuple[Any, ...], asyncio.Future[Any]]
"""A row's messages, and its answer to come."""


class _RowPrompter:
    """Gathers the rows that Daft hands on one by one into batches for an actor.

    Daft 0.7 starts a coroutine for each row of a batch before any of them goes on, so that what has come when the event
    loop gets to it is the whole batch.
    """

    def __init__(self, spec: PromptSpec, *, makes_values: bool) -> None:
        self._spec = spec
        self._makes_values = makes_values
        self._actors: dict[int, PromptActor] = {}
        self._waiting: dict[asyncio.AbstractEventLoop, list[_Row]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def prompt(self, messages: tuple[Any, ...]) -> Any:
        """Return the answer to one row."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if loop not in self._waiting:
            loop.call_soon(self._send, loop)
        self._waiting.setdefault(loop, []).append((messages, future))
        return await future

    def _send(self, loop: asyncio.AbstractEventLoop) -> None:
        rows = self._waiting.pop(loop)
        for start in range(0, len(rows), BATCH_SIZE):
            task = loop.create_task(self._answer(rows[start : start + BATCH_SIZE]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, rows: list[_Row]) -> None:
        try:
            parts = len(rows[0][0])
            if parts not in self._actors:
                kinds: tuple[PartKind, ...] = tuple(itertools.repeat("auto", parts))
                self._actors[parts] = PromptActor(replace(self._spec, parts=kinds))
            columns = [_series([messages[i] for messages, _ in rows]) for i in range(parts)]
            answers = (await self._actors[parts].answer_async(*columns)).to_pylist()
            for (_, future), answer in zip(rows, answers, strict=True):
                if not future.done():
                    future.set_result(self._value(answer))
        except BaseException as e:
            for _, future in rows:
                if not future.done():
                    future.set_exception(e)
            if not isinstance(e, Exception):
                raise

    def _value(self, answer: Mapping[str, Any]) -> Any:
        """Return what Daft makes a cell of: the value that its own providers would return."""
        if answer["value"] is None:
            return None
        form = self._spec.format
        if isinstance(form, CallFormat):
            return json.dumps(answer["value"])
        return form.python_value(answer["text"]) if self._makes_values else answer["text"]


def _makes_values(return_format: Any) -> bool:
    """Whether Daft's ``prompt`` makes a typed column of this format; it makes a string column of all others."""
    try:
        return return_format is not None and DataType.infer_from_type(return_format) != DataType.string()
    except Exception:  # as Daft's prompt does
        return False


def _series(cells: list[Any]) -> Series:
    """Return a column as it was before Daft took it apart, as far as that matters to a prompt."""
    if any(hasattr(cell, "__array__") for cell in cells):
        return Series.from_pylist(cells, dtype=DataType.python())
    return Series.from_pylist(cells)
