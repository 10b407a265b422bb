"""What a prompt is made of: text, media, messages."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

MediaKind = Literal["image", "audio", "video"]
MEDIA_KINDS: tuple[MediaKind, ...] = ("image", "audio", "video")


@dataclass(frozen=True, slots=True)
class Media:
    """An image, a sound or a video in a prompt. It is loaded when its row's turn comes, not before.

    Args:
        kind: what it is.
        load: returns it as vLLM takes it: a ``PIL.Image`` in mode RGB, or samples and their rate. If it can't be
            loaded, raises ``MediaError``, which has the row's error, or any other exception. Called from any thread.
        digest: digest of the content or of its location. Equal media have equal digests.
        seconds: how long ``load`` may take. None: it ends by itself. Default 120.
    """

    kind: MediaKind
    load: Callable[[], Any] = field(compare=False)
    digest: bytes
    seconds: float | None = field(default=120.0, compare=False)


Content = str | Media
"""A part of a message."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation.

    Args:
        role: ``system``, ``user``, ``assistant``, ``tool``, or another role that the chat template knows.
        content: its parts, in order.
        fields: further fields for the chat template, ``tool_calls`` and ``tool_call_id`` for example.
    """

    role: str
    content: tuple[Content, ...]
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages in order. The model answers the last one; if that is the assistant's, the model continues it."""

    messages: tuple[Message, ...]

    @property
    def continues_answer(self) -> bool:
        """Whether the last message is the beginning of the answer."""
        return bool(self.messages) and self.messages[-1].role == "assistant"


def merge_texts(content: Iterable[Content]) -> tuple[Content, ...]:
    """Return content in which texts that follow each other are joined into one, with a line break between them.

    Chat templates join texts in different ways, some with nothing between them. Then one text could end with half of a
    marker, and the next begin with the other half.
    """
    parts: list[Content] = []
    for part in content:
        if parts and isinstance(part, str) and isinstance(parts[-1], str):
            parts[-1] = f"{parts[-1]}\n{part}"
        else:
            parts.append(part)
    return tuple(parts)


def media_of(messages: Iterable[Message]) -> tuple[Media, ...]:
    """Return the media of all messages, in order."""
    return tuple(part for message in messages for part in message.content if isinstance(part, Media))


def media_digest(media: Iterable[Media], adapter: str | None = None) -> bytes:
    """Return one digest of several media in order and of a LoRA adapter's name. Empty if there is neither."""
    digests = [media.kind.encode() + media.digest for media in media]
    if adapter is not None:
        digests.append(b"adapter " + adapter.encode())
    if not digests:
        return b""
    return hashlib.blake2b(b"".join(digests), digest_size=16).digest()
