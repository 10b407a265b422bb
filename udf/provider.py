"""A provider that lets Daft's own ``daft.functions.prompt`` use daft-vllm."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

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
from daft_vllm.udf.planning.room import check_room, engines_of
from daft_vllm.udf.preflight.connection import on_ray
from daft_vllm.udf.progress.repeats import hide_repeats
from daft_vllm.udf.prompt import BATCH_SIZE
from daft_vllm.udf.worker.actor import PromptActor
from daft_vllm.udf.worker.spec import PromptSpec

_NOT_HERE = {
    "return_format": "an argument of Daft's prompt itself, not of the provider",
    "turns": "more columns than Daft's prompt passes on",
    "details": "a column of another type than Daft's prompt makes for return_format",
    "store": "kept by daft-vllm's own function only",
    "store_changed": "about a store, which only daft-vllm's own function keeps",
    "store_retry": "about a store, which only daft-vllm's own function keeps",
    "row_key": "about a store, which only daft-vllm's own function keeps",
    "ray_options": "not passed on by Daft's prompt",
    "use_process": "a choice that Daft's prompt makes itself",
    "batch_size": "a choice that Daft's prompt makes itself",
    "max_retries": "Daft's name for the option retries of daft-vllm",
}
_ON_ERROR = {"log": "null", "ignore": "null"}
"""Daft's names for the choice that a failed row is null."""


class Provider(DaftProvider):
    """Answers ``daft.functions.prompt(..., provider=Provider(...))`` with vLLM in this query.

    Use it for code that is written for Daft's function. ``daft_vllm.prompt`` does more (``details``, ``turns``, options
    by row), and passes on batches instead of rows. Rows that fail are null and logged unless ``on_error="raise"``. Daft
    makes the column's type from ``return_format``. Where Daft makes a string column, an answer that isn't text is JSON.
    Where Daft has no type of its own, the column has Python objects (for a dataclass or a ``Decimal``). Numbers in a
    prompt are written as Python writes them.

    Args:
        name: the provider's name in sessions. Default ``"daft-vllm"``.
        **options: defaults for every prompt, by the names of ``daft_vllm.prompt``: ``model``, ``engine_args``,
            ``gpus``, sampling options and so on. On Ray, ``max_concurrency`` is the number of engines.

    Raises:
        OptionError: an option is unknown, or not possible through Daft's function.
    """

    def __init__(self, name: str | None = None, **options: Any) -> None:
        self._name = name or "daft-vllm"
        self._options = options
        hide_repeats()
        self.get_prompter()  # checks the options

    @property
    def name(self) -> str:
        """The provider's name in sessions."""
        return self._name

    def get_prompter(
        self,
        model: str | None = None,
        return_format: Any | None = None,
        system_message: str | None = None,
        **options: Any,
    ) -> PrompterDescriptor:
        """Return the descriptor from which Daft makes actors. Arguments and errors are as in ``daft_vllm.prompt``."""
        given = {**self._options, **options}
        for name, value in (("model", model), ("system_message", system_message)):
            if value is not None:
                given[name] = value
        for option in given:
            if option in _NOT_HERE:
                raise OptionError(f"{option} is {_NOT_HERE[option]}: use daft_vllm.prompt(...).")
            if is_column(given[option]):
                raise OptionError(
                    f"{option} is a column, which Daft's prompt can't pass on: use daft_vllm.prompt(...)."
                )
        if isinstance(return_format, PerRow):
            raise OptionError("PerRow has a column, which Daft's prompt can't pass on: use daft_vllm.prompt(...).")
        if (on_error := given.get("on_error")) in _ON_ERROR:
            given["on_error"] = _ON_ERROR[on_error]
        chosen = PromptOptions.of({**given, "return_format": return_format, "details": True})
        ray = on_ray()
        if ray and chosen.files is not None:
            chosen.files.check_sent()
        spec = spec_of(chosen, ["auto"], use_process=ray)
        engines = engines_of(chosen.max_concurrency, spec.engine.gpus)
        check_room(engines, spec.engine.gpus)
        return _Descriptor(
            self._name,
            chosen.model,
            spec,
            _makes_values(return_format),
            engines,
        )


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
        # The actor itself asks again for rows that fail. An error that it raises has to end the query.
        gpus: Any = self.spec.engine.gpus
        concurrency = self.engines if on_ray() else None
        return UDFOptions(concurrency=concurrency, num_gpus=gpus, max_retries=0, on_error="raise")

    def instantiate(self) -> Prompter:
        return _RowPrompter(self.spec, makes_values=self.makes_values)


_Row = tuple[tuple[Any, ...], asyncio.Future[Any]]
"""A row's messages, and the future of its answer."""


class _RowPrompter:
    """Collects the rows that Daft passes on one by one, and gives them to an actor in batches.

    Daft 0.7 starts a coroutine for each row of a batch before any of them continues. So when the event loop calls
    ``_send``, all rows of the batch are waiting.
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
        """Return the value that Daft's own providers would return for this answer. Daft makes the cell from it."""
        if answer["value"] is None:
            return None
        form = self._spec.format
        if isinstance(form, CallFormat):
            return json.dumps(answer["value"])
        return form.python_value(answer["text"]) if self._makes_values else answer["text"]


def _makes_values(return_format: Any) -> bool:
    """Whether Daft's ``prompt`` makes a typed column for this format. For all other formats it makes string columns."""
    try:
        return return_format is not None and DataType.infer_from_type(return_format) != DataType.string()
    except Exception:  # Daft's prompt catches all of them too
        return False


def _series(cells: list[Any]) -> Series:
    """Return cells as a column again. Arrays stay Python objects. For all other cells Daft infers the type."""
    if any(hasattr(cell, "__array__") for cell in cells):
        return Series.from_pylist(cells, dtype=DataType.python())
    return Series.from_pylist(cells)
