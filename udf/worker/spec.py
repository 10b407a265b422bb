"""``PromptSpec``: the one picklable object that a worker gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from daft import DataType

from daft_vllm.engine import EngineConfig, SamplingOptions
from daft_vllm.engine.requests.content import MediaKind, Message
from daft_vllm.engine.requests.request import Truncation
from daft_vllm.engine.requests.toolbox import Toolbox
from daft_vllm.udf.answers.results import details_type
from daft_vllm.udf.answers.return_format import ReturnFormat
from daft_vllm.udf.columns.parts import PartKind
from daft_vllm.udf.options import PromptOptions
from daft_vllm.udf.worker.stored import StoreSpec


@dataclass(frozen=True)
class PromptSpec:
    """Everything a worker needs to answer a column. Picklable.

    Args:
        engine: how to start the engine.
        sampling: sampling options of every row.
        format: what every answer has to be.
        options: the options of ``prompt()`` that a worker uses as the user gave them, from
            ``PromptOptions.for_worker``.
        parts: what each column of the prompt contains, in order.
        turns: for each message that follows, what each of its columns contains. The column of the answer comes before
            them.
        examples: messages before every prompt.
        preambles: texts before the prompts, see ``daft_vllm.engine.Request``, by the name of the row's format. The name
            is None if all rows have the same format.
        thinking: see ``daft_vllm.engine.Request``.
        toolbox: tools that the model may call.
        chat_template_kwargs: arguments of the chat template.
        row_options: names of the sampling options that have a value for each row.
        row_system_message: whether each row has its own system message. Null: the one of ``options``.
        row_adapter: whether each row has its own adapter. Null: the model without an adapter.
        row_key: whether each row has a name in the store. Null: it has none.
        store: where answers are kept. None: nowhere.
        engines: how many engines answer the rows of one process, from one queue.
        claim_gpus: take free GPUs of this machine, because nothing else assigns GPUs.
        board: on Ray, the name of the actor that takes the query's counters. None: nobody watches, or not on Ray.
    """

    engine: EngineConfig
    sampling: SamplingOptions
    format: ReturnFormat
    options: PromptOptions = field(default_factory=PromptOptions)
    parts: tuple[PartKind, ...] = ("auto",)
    turns: tuple[tuple[PartKind, ...], ...] = ()
    examples: tuple[Message, ...] = ()
    preambles: Mapping[str | None, str | None] = field(default_factory=dict)
    thinking: bool | None = None
    toolbox: Toolbox | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None
    row_options: tuple[str, ...] = ()
    row_system_message: bool = False
    row_adapter: bool = False
    row_key: bool = False
    store: StoreSpec | None = None
    engines: int = 1
    claim_gpus: bool = False
    board: str | None = None

    @property
    def dtype(self) -> DataType:
        """Type of the result column."""
        return details_type(self.format.dtype) if self.options.details else self.format.dtype

    @property
    def system_message(self) -> str | None:
        """The system message of every row that has none of its own."""
        message = self.options.system_message
        return message if isinstance(message, str) else None

    @property
    def adapter(self) -> str | None:
        """Name of the LoRA adapter of all rows. None: no adapter, or each row has its own."""
        name = self.options.adapter
        return name if isinstance(name, str) else None

    @property
    def truncation(self) -> Truncation:
        """How the prompts are cut."""
        return Truncation(self.engine.truncate_prompt_tokens, self.engine.truncation_side)

    @property
    def media(self) -> set[MediaKind]:
        """Kinds of media that the columns certainly contain."""
        return {kind for kinds in (self.parts, *self.turns) for kind in kinds if kind in ("image", "audio")}

    @property
    def needs_chat_template(self) -> bool:
        """Whether the model must have a chat template: the user asked for it, or the prompt is more than one text."""
        applied = self.options.apply_chat_template
        several = self.turns or self.examples or self.row_system_message or len(self.parts) > 1
        several = several or self.system_message is not None or self.toolbox is not None
        return applied is not False and bool(applied or several)
