"""What goes into the engine: one row's prompt and options."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from daft_vllm.engine.constraints.constraint import Constraint
from daft_vllm.engine.requests.content import Content, Conversation, Message
from daft_vllm.engine.requests.sampling import SamplingOptions
from daft_vllm.engine.requests.toolbox import Toolbox

_DEFAULT = SamplingOptions()


@dataclass(frozen=True, slots=True)
class Truncation:
    """How long prompts are cut.

    Args:
        tokens: longest prompt in tokens; the user's text is cut to fit. -1: as long as the context allows, with one
            token left for the answer. None: never cut.
        side: the side that is cut, ``"right"`` (the end) or ``"left"``.
    """

    tokens: int | None = None
    side: str = "right"


@dataclass(frozen=True, slots=True)
class Request:
    """One row for the engine.

    Args:
        prompt: the user's text; or the parts of the user's message, text and media, in order; or a conversation. If it
            is None, or has neither text nor media, the row gets an error value.
        system_message: the chat template puts it before the prompt, unless the prompt is a conversation that begins
            with a system message. None: the template's own default, if it has one.
        examples: messages between the system message and the prompt: questions and the answers to them.
        preamble: text before the prompt: at the end of the system message or, without one, at the beginning of the
            first user message.
        sampling: sampling options.
        own_seed: the row's seed is made from ``sampling.seed`` and the row's prompt. With the same seed for all rows,
            rows with different prompts would otherwise get the same random draws.
        constraint: what the output has to satisfy. None: free text.
        apply_chat_template: False sends ``prompt`` to the model as it is; None does so if the model has no template.
        chat_template_kwargs: arguments for the chat template.
        thinking: True: the answer begins with the model's thinking, which becomes the outcome's ``reasoning``; a
            constraint does not apply to it. The engine needs ``reasoning_parser`` in its ``engine_args``. False: the
            chat template is asked to turn thinking off. None: the template decides, and thinking is part of the text.
        adapter: name of the LoRA adapter, one of the engine's. None: the model without an adapter.
        toolbox: tools that the model may call; the outcome then has a ``tool_answer``. None: no tools.
        row_key: the row's name in a store of answers. The engine doesn't look at it. None: it has none.
        draft: whether tokens of the answer may be guessed, for vLLM to verify. See ``drafts/``.
        truncation: how the prompt is cut if it is too long. None: as the engine's config says.
    """

    prompt: str | tuple[Content, ...] | Conversation | None
    system_message: str | None = None
    examples: tuple[Message, ...] = ()
    preamble: str | None = None
    sampling: SamplingOptions = _DEFAULT
    own_seed: bool = False
    constraint: Constraint | None = None
    apply_chat_template: bool | None = True
    chat_template_kwargs: Mapping[str, Any] | None = None
    thinking: bool | None = None
    adapter: str | None = None
    toolbox: Toolbox | None = None
    row_key: str | None = None
    truncation: Truncation | None = None
    draft: bool = True

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
            system = (_with_paragraph(system[0], before=False, text=self.preamble),)
        elif self.preamble is not None and rest:
            first = next((i for i, message in enumerate(rest) if message.role == "user"), 0)
            rest[first] = _with_paragraph(rest[first], before=True, text=self.preamble)
        return (*system, *rest)


def last_text(request: Request, most: int) -> str:
    """Return how the last text of the user begins: at most ``most`` characters. A medium is its kind, ``[image]``."""
    if isinstance(request.prompt, str):
        return request.prompt[:most]
    content: tuple[Content, ...] = ()
    if isinstance(request.prompt, Conversation):
        asked = [message for message in request.prompt.messages if message.role == "user"]
        content = asked[-1].content if asked else ()
    elif request.prompt is not None:
        content = request.prompt
    return " ".join(part[:most] if isinstance(part, str) else f"[{part.kind}]" for part in content)[:most]


def options_digest(request: Request) -> bytes:
    """Return a digest of what an answer depends on besides the rendered prompt, its media and the adapter."""
    own_seed = request.own_seed and request.sampling.seed is not None
    determining = (request.sampling, own_seed, request.constraint, request.thinking, request.toolbox)
    return hashlib.blake2b(repr(determining).encode(), digest_size=16).digest()


def _with_paragraph(message: Message, *, before: bool, text: str) -> Message:
    """Return a message with ``text`` as one more paragraph, before or after its content."""
    content = message.content
    if before:
        if content and isinstance(content[0], str):
            return replace(message, content=(f"{text}\n\n{content[0]}", *content[1:]))
        return replace(message, content=(text, *content))
    if content and isinstance(content[-1], str):
        return replace(message, content=(*content[:-1], f"{content[-1]}\n\n{text}"))
    return replace(message, content=(*content, text))
