"""What a worker is told: one picklable object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from daft import DataType

from daft_vllm.engine import EngineConfig, SamplingOptions
from daft_vllm.engine.requests.content import MediaKind, Message
from daft_vllm.engine.requests.toolbox import Toolbox
from daft_vllm.udf.answers.results import details_type
from daft_vllm.udf.answers.return_format import ReturnFormat
from daft_vllm.udf.columns.files import FileAccess
from daft_vllm.udf.columns.parts import PartKind


@dataclass(frozen=True)
class PromptSpec:
    """Everything a worker needs to answer a column. Picklable.

    Args:
        engine: how to start the engine.
        sampling: sampling options of every row.
        format: what every answer has to be.
        parts: what each column of the prompt holds, in order.
        turns: what each column of the messages that follow holds; before each message the column of the answer.
        files: from where the files that the columns name may be read.
        system_message: put before every prompt.
        examples: messages before every prompt.
        row_system_message: whether each row brings a system message of its own; null: ``system_message``.
        apply_chat_template: False sends the prompts as they are. None: so it is where the model has no template.
        chat_template_kwargs: handed to the chat template.
        on_error: ``"null"`` leaves failed rows null, ``"raise"`` raises after the batch they are in.
        row_options: names of the sampling options that come with each row.
        dedupe: compute identical rows once.
        preambles: said before the prompts, see ``daft_vllm.engine.Request``; by the name of the row's format, which is
            None where all rows have the same.
        thinking: see ``daft_vllm.engine.Request``.
        retries: how often a row is asked again that was cut off or is invalid.
        adapter: name of the LoRA adapter of every row.
        row_adapter: whether each row names one of its own; null: the model as it is.
        toolbox: tools that the model may call.
        details: whether the column holds a struct with the value, or the value alone.
        claim_gpus: take free GPUs of this machine, because nobody else hands them out.
        progress_folder: where live counters are written. None: nowhere.
    """

    engine: EngineConfig
    sampling: SamplingOptions
    format: ReturnFormat
    parts: tuple[PartKind, ...] = ("auto",)
    turns: tuple[tuple[PartKind, ...], ...] = ()
    files: FileAccess = field(default_factory=FileAccess)
    system_message: str | None = None
    examples: tuple[Message, ...] = ()
    row_system_message: bool = False
    apply_chat_template: bool | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None
    on_error: Literal["null", "raise"] = "null"
    row_options: tuple[str, ...] = ()
    preambles: Mapping[str | None, str | None] = field(default_factory=dict)
    thinking: bool | None = None
    retries: int = 0
    dedupe: bool = True
    adapter: str | None = None
    row_adapter: bool = False
    toolbox: Toolbox | None = None
    details: bool = False
    claim_gpus: bool = False
    progress_folder: str | None = None

    @property
    def dtype(self) -> DataType:
        """Type of the result column."""
        return details_type(self.format.dtype) if self.details else self.format.dtype

    @property
    def media(self) -> set[MediaKind]:
        """Kinds of media that the columns are known to hold."""
        return {kind for kinds in (self.parts, *self.turns) for kind in kinds if kind in ("image", "audio")}

    @property
    def needs_chat_template(self) -> bool:
        """Whether there is more than one text to say."""
        several = self.turns or self.examples or self.row_system_message or len(self.parts) > 1
        several = several or self.system_message is not None or self.toolbox is not None
        return self.apply_chat_template is not False and bool(self.apply_chat_template or several)
