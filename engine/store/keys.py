"""The key of an answer: a digest of everything that determines it, made without loading the model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from daft_vllm.engine.requests.content import Content, Message
from daft_vllm.engine.requests.request import Request
from daft_vllm.engine.store.segments import KEY_BYTES


def request_key(request: Request, options: bytes, engine: bytes) -> bytes:
    """Return the key of a request.

    Args:
        request: the request. It has a prompt.
        options: its ``options_digest``.
        engine: what stands for the model and the engine's settings, from ``identity_digest``.
    """
    whole = (
        [_message(message) for message in request.messages()],
        isinstance(request.prompt, str),
        request.apply_chat_template,
        json.dumps(request.chat_template_kwargs or {}, default=repr),
        request.adapter,
        options,
    )
    return hashlib.blake2b(repr(whole).encode(errors="surrogatepass"), digest_size=KEY_BYTES, key=engine).digest()


def identity_digest(identity: Mapping[str, str]) -> bytes:
    """Return a digest of what stands for the model and the engine's settings."""
    text = json.dumps(identity, sort_keys=True)
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=32).digest()


def _message(message: Message) -> Any:
    fields = json.dumps(message.fields, default=repr)
    return message.role, [_part(part) for part in message.content], fields


def _part(part: Content) -> str | tuple[str, str]:
    return part if isinstance(part, str) else (part.kind, part.digest.hex())
