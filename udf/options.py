"""Every option of ``prompt()``: its type, its default and a line of help, in one place.

``prompt()`` has them as parameters, in the same order. ``Provider``, ``check``, the command and the worker take a
``PromptOptions``. To add an option, add a field here and a parameter to ``prompt()``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, get_type_hints

from pydantic import Field

from daft_vllm.annotations import allows, shown, words
from daft_vllm.engine.constraints.constraint import BackendChoice
from daft_vllm.engine.requests.limits import Limits
from daft_vllm.engine.requests.sampling import REFUSED, SamplingOptions
from daft_vllm.engine.setup.arg_types import vllm_engine_arg_names
from daft_vllm.engine.setup.config import RESERVED_ARGS, secret_refused
from daft_vllm.engine.setup.sampling_rules import check_sampling
from daft_vllm.errors import OptionError, suggest
from daft_vllm.secrets import secrets_in
from daft_vllm.udf.actor_options import check_ray_options
from daft_vllm.udf.other_names import NOT_HERE, OTHER_NAMES

if TYPE_CHECKING:
    import daft

    from daft_vllm.udf.answers.formats import Tools
    from daft_vllm.udf.columns.files import FileAccess
    from daft_vllm.udf.columns.parts import Messages

DEFAULT_MODEL = "smollm2-135m"
"""The model of the ``demo`` extra: SmolLM2-135M-Instruct. A Python package contains it."""


class SamplingArguments(TypedDict, total=False):
    """Sampling options by vLLM's names, as ``SamplingOptions`` checks them; each may be a column."""

    temperature: float | daft.Expression
    top_p: float | daft.Expression
    top_k: int | daft.Expression
    min_p: float | daft.Expression
    presence_penalty: float | daft.Expression
    frequency_penalty: float | daft.Expression
    repetition_penalty: float | daft.Expression
    seed: int | daft.Expression | None
    max_tokens: int | daft.Expression
    min_tokens: int | daft.Expression
    thinking_token_budget: int | daft.Expression | None
    stop: str | list[str] | daft.Expression | None
    stop_token_ids: list[int] | daft.Expression | None
    include_stop_str_in_output: bool | daft.Expression
    ignore_eos: bool | daft.Expression
    bad_words: list[str] | daft.Expression | None
    logit_bias: dict[int, float] | daft.Expression | None
    allowed_token_ids: list[int] | daft.Expression | None
    skip_special_tokens: bool | daft.Expression
    spaces_between_special_tokens: bool | daft.Expression


def _option(default: Any, text: str, kind: str | None = None, *, secret: bool = False) -> Any:
    """Return a field. ``kind`` says what the option is, where the words for its type would not say enough.

    ``secret``: a value may hold a secret, and is not shown.
    """
    return field(default=default, metadata={"help": text, "kind": kind, "secret": secret}, repr=not secret)


_PAIRS = "a list of pairs: the column of an answer, and the message that follows it"
_EXAMPLES = "a list of pairs of a question and its answer, [('1 + 1?', 2)]"


@dataclass(frozen=True, kw_only=True)
class PromptOptions:
    """What ``prompt()`` takes beside the messages. Its docstring explains each option in full.

    Raises:
        OptionError: a value is of the wrong kind, out of range, or contradicts another.
    """

    return_format: Any = _option(None, "What every answer has to be.")
    enforce: Literal["strict", "validate"] = _option("strict", "What to do with a format that a grammar can't enforce.")
    backend: BackendChoice = _option("auto", "The library that enforces the format.")
    describe_schema: bool = _option(True, "Describe the format in the prompt.")
    thinking: bool | None = _option(None, "Whether the model thinks before it answers.")
    recommended_sampling: bool = _option(False, "Use the sampling options that the model's makers recommend.")
    tools: Sequence[Any] | Tools = _option((), "Functions that the model may call.", "a list of functions")
    tool_choice: str = _option("auto", "Whether the model has to call a tool: auto, required, or a tool's name.")
    tool_parser: str | None = _option(None, "vLLM's name of the parser of the model's calls.")
    parallel_tool_calls: bool = _option(True, "Whether an answer may have several calls.")
    retries: Annotated[int, Field(ge=0)] = _option(
        0, "How often to ask again for a row that was cut off or is invalid."
    )
    turns: Sequence[tuple[daft.Expression, Messages]] = _option(
        (), "How the conversation continues after messages.", _PAIRS
    )
    skip_blank: bool = _option(False, "Give rows with a blank prompt no answer, as rows with a null prompt.")
    system_message: str | daft.Expression | None = _option(None, "Instructions put before every prompt.")
    examples: Sequence[tuple[str, Any]] = _option(
        (), "Questions with their answers, put before every prompt.", _EXAMPLES
    )
    files: FileAccess | None = _option(
        None, "Where files that the columns name may be read from.", "FileAccess(folders=[...])"
    )
    model: str = _option(DEFAULT_MODEL, "A folder, a name on the hub, or a short name such as smollm2-135m.")
    engine_args: Mapping[str, Any] | None = _option(
        None, "vLLM's engine arguments, by vLLM's names.", "a dict by vLLM's names", secret=True
    )
    goal: str | None = _option(None, "The job's goal: throughput, long-context, images, text or short-job.")
    apply_chat_template: bool | None = _option(None, "Whether the model's chat template is applied.")
    chat_template: str | None = _option(None, "Jinja text that replaces the model's own chat template.")
    chat_template_kwargs: Mapping[str, Any] | None = _option(None, "Arguments of the chat template.")
    truncate_prompt_tokens: int | None = _option(None, "Cut longer prompts to this many tokens; -1: to the context.")
    truncation_side: Literal["left", "right"] = _option("right", "The side of the text that is cut.")
    adapters: Mapping[str, str] | None = _option(
        None, "LoRA adapters, by names that you choose.", "a dict of names and folders"
    )
    adapter: str | daft.Expression | None = _option(None, "The name of the adapter that rows use.")
    gpus: float | None = _option(None, "GPUs of each engine. Default: 1 if a GPU is visible, else 0.")
    reproducible: bool = _option(
        False, "Give a row the same answer whatever else is in the batch, and when the job runs again."
    )
    draft: Literal["on", "off"] = _option("off", "Guess tokens that vLLM then verifies, where that saves time.")
    use_process: bool | Literal["auto"] = _option("auto", "Whether each engine runs in a process of its own.")
    max_concurrency: Annotated[int, Field(ge=1)] | Literal["auto"] = _option(
        1, "Engines in all; auto: as many as the visible GPUs are enough for."
    )
    ray_options: Mapping[str, Any] | None = _option(
        None, "On Ray: options of each engine's actor, by Ray's names.", "a dict by Ray's names", secret=True
    )
    batch_size: Annotated[int, Field(ge=1)] | None = _option(None, "Rows sent to an engine at once.")
    dedupe: bool = _option(True, "Compute rows with the same prompt and options once.")
    on_error: Literal["null", "raise"] = _option("null", "null: a failed row is null. raise: it ends the query.")
    details: bool = _option(False, "Return a struct: value, text, token counts, and the reason of a failure.")
    stall_timeout: float = _option(300.0, "Seconds without a step, after which vLLM counts as dead.")
    max_restarts: int = _option(5, "How often in a row vLLM may be started again.")
    row_timeout: Annotated[float, Field(gt=0)] | None = _option(
        None, "Seconds that a row may be inside vLLM. Default: any time."
    )
    deadline: datetime | str | None = _option(
        None,
        "When to stop: '2026-12-01T06:00'. Rows without an answer then get an error.",
        "a time, '2026-12-01T06:00'",
    )
    store: str | None = _option(None, "A folder or URL that keeps each answer: the job goes on there if run again.")
    store_changed: bool = _option(False, "Use the store, although something else is asked than before.")
    store_retry: Mapping[str, Any] | None = _option(
        None, "Sampling options with which rows that failed before are asked again.", "a dict of sampling options"
    )
    row_key: daft.Expression | None = _option(None, "A column that names each row in the store.", "a column")
    progress_folder: str | None = _option(None, "A folder in which each engine keeps its counters.")
    sampling: Mapping[str, Any] = field(default_factory=dict, metadata={"help": "Sampling options, by vLLM's names."})

    def __post_init__(self) -> None:
        wrong = []
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name == "sampling" or value is one.default or allows(option_type(one.name), value):
                continue
            kind = one.metadata["kind"] or words(option_type(one.name))
            seen = type(value).__name__ if one.metadata["secret"] else shown(value)
            wrong.append(f"{one.name} is {kind}, got {seen}.")
        if wrong:
            raise OptionError(" ".join(wrong))
        if self.deadline is not None:
            time_of(self.deadline)
        for name, given in (
            ("system_message", self.system_message is not None),
            ("turns", bool(self.turns)),
            ("examples", bool(self.examples)),
        ):
            if given and self.apply_chat_template is False:
                raise OptionError(f"{name} needs the chat template: write {name} into the prompts, or leave it out.")
        for name, value in self.sampling.items():
            _check_name(name, value)
        self._check_store()
        if self.ray_options is not None:
            check_ray_options(self.ray_options)
        if self.sampling.get("thinking_token_budget") is not None and not self.thinking:
            raise OptionError("thinking_token_budget needs thinking=True: set that too, or leave the budget out.")

    def _check_store(self) -> None:
        """Raise ``OptionError`` if an option about the store has no store, or can't be used."""
        for name in ("row_key", "store_retry"):
            if getattr(self, name) is not None and self.store is None:
                raise OptionError(f'{name} is about a store of answers: pass store="folder" too, or leave it out.')
        if self.store_retry is None:
            return
        if not self.store_retry:
            raise OptionError("store_retry says what changes for rows that failed: store_retry={'max_tokens': 2048}.")
        for name, value in self.store_retry.items():
            if is_column(value):
                raise OptionError(f"store_retry has a column for {name}, and takes values only.")
        self.retried().common_sampling  # noqa: B018

    def retried(self) -> PromptOptions:
        """Return the options with which rows that failed before are asked again.

        Raises:
            OptionError: an option in ``store_retry`` is unknown, or contradicts another.
        """
        return replace(self, sampling={**self.sampling, **(self.store_retry or {})}, store_retry=None)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> PromptOptions:
        """Return the options with these names and values. Names that are not ``prompt()``'s own are sampling options.

        Raises:
            OptionError: an option is unknown, or a value is of the wrong kind, out of range, or contradicts another.
        """
        own = {name: value for name, value in given.items() if name in OPTION_NAMES}
        sampling = {name: value for name, value in given.items() if name not in OPTION_NAMES}
        return cls(**own, sampling=sampling)

    @property
    def row_sampling(self) -> dict[str, daft.Expression]:
        """The sampling options that are columns: each row has its own value."""
        return {name: value for name, value in self.sampling.items() if is_column(value)}

    @property
    def common_sampling(self) -> SamplingOptions:
        """The sampling options that are the same for every row.

        Raises:
            OptionError: a value is of the wrong type or out of range.
        """
        given = {name: value for name, value in self.sampling.items() if not is_column(value)}
        problems: list[str] = []
        while True:
            try:
                sampling = SamplingOptions.of(given)
                # The default in the place of another max_tokens contradicts nothing.
                unknown = {"max_tokens": None} if "max_tokens" in {*self.sampling} - {*given} else {}
                check_sampling({**sampling.model_dump(), **unknown})
                break
            except OptionError as e:  # vLLM tells the first problem only
                problems.append(str(e))
                named = [name for name in given if re.search(rf"\b{name}\b", problems[-1])]
                given = {name: value for name, value in given.items() if name not in named}
                if not named:
                    break
        if problems:
            more = [problem.rstrip(".") for problem in problems[:-1]]
            raise OptionError("; ".join([*more, problems[-1]]))
        return sampling

    @property
    def limits(self) -> Limits:
        """How much time the rows have."""
        return Limits(self.row_timeout, time_of(self.deadline) if self.deadline is not None else None)

    def has_column(self, name: str) -> bool:
        """Whether an option is a column: each row has its own value."""
        return is_column(getattr(self, name))

    def for_worker(self) -> PromptOptions:
        """Return the options without columns and without those that may be large, of which the spec has the result."""
        return replace(
            self,
            return_format=None,
            tools=(),
            turns=(),
            examples=(),
            sampling={},
            row_key=None,
            ray_options=None,
            system_message=None if self.has_column("system_message") else self.system_message,
            adapter=None if self.has_column("adapter") else self.adapter,
        )


def _check_name(name: str, value: Any) -> None:
    """Raise ``OptionError`` for a name that is no sampling option. The message says what may have been meant."""
    if name in SamplingOptions.model_fields:
        return
    why = REFUSED.get(name) or NOT_HERE.get(name)
    if why is not None:
        raise OptionError(f"option {name!r} is not available here: {why}.")
    if name in OTHER_NAMES:
        raise OptionError(f"prompt() has no option {name!r}: write {OTHER_NAMES[name]}.")
    if any(secrets_in(value, name)) and not isinstance(value, Mapping):
        raise OptionError(secret_refused(name))
    if name not in RESERVED_ARGS and name in (vllm_engine_arg_names() or ()):
        raise OptionError(f"{name!r} is an argument of vLLM's engine: write engine_args={{{name!r}: {shown(value)}}}.")
    near = suggest(name, [*SamplingOptions.model_fields, *OPTION_NAMES])
    raise OptionError(f"unknown option {name!r}.{near} help(daft_vllm.prompt) lists all of them.")


def time_of(deadline: datetime | str) -> float:
    """Return a time in seconds of ``time.time()``. Without a zone it is a local time.

    Raises:
        OptionError: it is no time.
    """
    try:
        when = datetime.fromisoformat(deadline.strip()) if isinstance(deadline, str) else deadline
        return when.timestamp()
    except (ValueError, OverflowError, OSError):
        raise OptionError(f"deadline is a time, such as '2026-12-01T06:00', got {shown(deadline)}.") from None


def is_column(value: Any) -> bool:
    """Whether an option's value is a column."""
    import daft

    return isinstance(value, daft.Expression)


OPTION_NAMES = tuple(one.name for one in fields(PromptOptions) if one.name != "sampling")
"""Names of ``prompt()``'s own options, in the order of its parameters."""
DEFAULT = PromptOptions()


@functools.cache
def _hints() -> dict[str, Any]:
    import daft

    from daft_vllm.udf.answers.formats import Tools
    from daft_vllm.udf.columns.files import FileAccess
    from daft_vllm.udf.columns.parts import Messages

    names = {"daft": daft, "Tools": Tools, "FileAccess": FileAccess, "Messages": Messages}
    return get_type_hints(PromptOptions, localns=names, include_extras=True)


def option_type(name: str) -> Any:
    """Return the annotation of one of ``prompt()``'s own options, or of a sampling option, with its limits."""
    return _hints()[name] if name in _hints() else get_type_hints(SamplingOptions, include_extras=True)[name]


def option_help(name: str) -> str:
    """Return the line of help for one of ``prompt()``'s own options, or for a sampling option."""
    for one in fields(PromptOptions):
        if one.name == name:
            return str(one.metadata["help"])
    described = SamplingOptions.model_fields[name].description
    assert described is not None, name
    return described


def option_default(name: str) -> Any:
    """Return the default of one of ``prompt()``'s own options, or of a sampling option."""
    return getattr(DEFAULT, name) if name in OPTION_NAMES else SamplingOptions.model_fields[name].default
