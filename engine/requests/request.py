"""What goes into the engine and what comes out of it, row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from daft_vllm.engine.requests.content import Content, Conversation, Message
from daft_vllm.engine.requests.sampling import SamplingOptions
from daft_vllm.errors import OptionError

ErrorCode = Literal[
    "null_prompt",
    "empty_prompt",
    "prompt_too_long",
    "invalid_prompt",
    "invalid_media",
    "unavailable_media",
    "invalid_request",
    "truncated",
    "invalid_output",
    "engine_error",
]
"""Why a row has no value.

``null_prompt``: the prompt was null. ``empty_prompt``: it held no text. ``prompt_too_long``: it leaves no room for an
answer in the model's context. ``invalid_prompt``: the chat template or the tokenizer refused it. ``invalid_media``: an
image or another medium of the prompt can't be read, or is of a kind that the model doesn't take.
``unavailable_media``: it can't be fetched, or may not be. ``invalid_request``: vLLM refused its options.
``truncated``: a guided answer was cut off before it was complete. ``invalid_output``: a guided answer does not satisfy
its format. ``engine_error``: vLLM failed on this row and went on, or died of it again and again.
"""


_DEFAULT = SamplingOptions()


class ErrorValue(NamedTuple):
    """A row's failure as a value: a code to group by and a message that says what to do."""

    code: ErrorCode
    message: str

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the output is held to: exactly one of the first four.

    Args:
        json_schema: JSON Schema (draft 2020-12) as text.
        choices: the only answers allowed.
        regex: a regular expression that matches the whole answer, in Python's syntax.
        grammar: EBNF as xgrammar reads it (``root ::= ...``), or Lark (``start: ...``).
        enforce: ``"validate"`` accepts a schema of which a part can't be enforced while an answer is written; who
            reads the answer has to check it.
        backend: the library that enforces it. ``"auto"``: xgrammar where it holds all of it and leaves nothing out,
            else guidance (llguidance) where that does.
    """

    json_schema: str | None = None
    choices: tuple[str, ...] | None = None
    regex: str | None = None
    grammar: str | None = None
    enforce: Literal["strict", "validate"] = "strict"
    backend: Literal["auto", "xgrammar", "guidance"] = "auto"

    def __post_init__(self) -> None:
        said = [name for name in ("json_schema", "choices", "regex", "grammar") if getattr(self, name) is not None]
        if len(said) != 1:
            raise OptionError(f"a constraint is one of json_schema, choices, regex and grammar, got {said or 'none'}.")


@dataclass(frozen=True, slots=True)
class Toolbox:
    """Tools that the model may call, as its chat template tells it, in what format it was trained to.

    Args:
        tools: JSON of each, in OpenAI's form: ``{"type": "function", "function": {...}}``.
        parser: vLLM's name of the parser that reads the model's calls, ``"hermes"`` for example.
    """

    tools: tuple[str, ...]
    parser: str


class ToolCall(NamedTuple):
    """One call: the tool's name, and its arguments as JSON text, not yet validated."""

    name: str
    arguments: str


class ToolAnswer(NamedTuple):
    """What an answer says beside its calls, None if nothing, and its calls."""

    content: str | None
    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """One row for the engine.

    Args:
        prompt: the user's text; or the parts of the user's message, text and media, in order; or a conversation. None,
            and what holds neither text nor media, is answered with an error value.
        system_message: put before the prompt by the chat template, unless it is a conversation that begins with one.
            None: the template's own default, if it has one.
        examples: messages between the system message and the prompt: questions and the answers to them.
        preamble: said before the prompt: at the end of the system message, or, without one, in the user's message.
        sampling: sampling options.
        constraint: what the output is held to. None: free text.
        apply_chat_template: False sends ``prompt`` to the model as it is; None does where the model has no template.
        chat_template_kwargs: handed to the chat template.
        thinking: True: the answer begins with the model's thinking, which a constraint lets pass and which becomes the
            outcome's ``reasoning``; the engine needs ``reasoning_parser`` in its ``engine_args``. False: the chat
            template is told to leave it out. None: as the template has it, part of the text.
        adapter: name of the LoRA adapter, one of the engine's. None: the model as it is.
        toolbox: tools that the model may call; the outcome then has a ``tool_answer``. None: none.
    """

    prompt: str | tuple[Content, ...] | Conversation | None
    system_message: str | None = None
    examples: tuple[Message, ...] = ()
    preamble: str | None = None
    sampling: SamplingOptions = _DEFAULT
    constraint: Constraint | None = None
    apply_chat_template: bool | None = True
    chat_template_kwargs: Mapping[str, Any] | None = None
    thinking: bool | None = None
    adapter: str | None = None
    toolbox: Toolbox | None = None

    def messages(self) -> tuple[Message, ...]:
        """Return the messages of this request, in order."""
        if isinstance(self.prompt, Conversation):
            messages = self.prompt.messages
        else:
            content = (self.prompt or "",) if isinstance(self.prompt, str | None) else self.prompt
            messages = (Message("user", content),)
        system: tuple[Message, ...] = ()
        if messages and messages[0].role == "system":
            system, messages = messages[:1], messages[1:]
        elif self.system_message is not None:
            system = (Message("system", (self.system_message,)),)
        rest = [*self.examples, *messages]
        if self.preamble is not None and system:
            system = (_begun(system[0], before=False, text=self.preamble),)
        elif self.preamble is not None and rest:
            first = next((i for i, message in enumerate(rest) if message.role == "user"), 0)
            rest[first] = _begun(rest[first], before=True, text=self.preamble)
        return (*system, *rest)


def _begun(message: Message, *, before: bool, text: str) -> Message:
    """Return a message with a paragraph more, before or after what it says."""
    content = message.content
    if before:
        if content and isinstance(content[0], str):
            return replace(message, content=(f"{text}\n\n{content[0]}", *content[1:]))
        return replace(message, content=(text, *content))
    if content and isinstance(content[-1], str):
        return replace(message, content=(*content[:-1], f"{content[-1]}\n\n{text}"))
    return replace(message, content=(*content, text))


class Outcome(NamedTuple):
    """What became of one row: a text, or an error, never neither.

    Attributes:
        text: what the model wrote, also kept when ``error`` says that it can't be used. None if nothing was generated.
        finish_reason: vLLM's: ``stop`` or ``length``; None if nothing was generated.
        prompt_tokens: tokens of the rendered prompt. 0 if it was never tokenized.
        cached_tokens: those of them that came from the prefix cache.
        completion_tokens: tokens generated.
        queue_seconds: how long the row waited before vLLM took it. 0 if it never waited.
        error: why there is no usable answer, or None.
        reasoning: what the model thought before it answered; None if it was not asked to think.
        tool_answer: the answer taken apart, of a row with tools.
    """

    text: str | None = None
    finish_reason: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    queue_seconds: float = 0.0
    error: ErrorValue | None = None
    reasoning: str | None = None
    tool_answer: ToolAnswer | None = None

    @classmethod
    def failed(cls, code: ErrorCode, message: str, *, prompt_tokens: int = 0) -> Outcome:
        """Return the outcome of a row for which nothing was generated."""
        return cls(error=ErrorValue(code, message), prompt_tokens=prompt_tokens)


def count_by_code(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """Count the failed rows of ``outcomes`` by error code, most frequent first."""
    counts: dict[str, int] = {}
    for outcome in outcomes:
        if outcome.error is not None:
            counts[outcome.error.code] = counts.get(outcome.error.code, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))
