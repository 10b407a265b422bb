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
        request: the request. It has a prompt. Its ``row_key``, if it has one, is part of the key.
        options: its ``options_digest``.
        engine: what stands for the model and the engine's settings, from ``identity_digest``.
    """
    whole: tuple[Any, ...] = (
        [_message(message) for message in request.messages()],
        isinstance(request.prompt, str),
        request.apply_chat_template,
        json.dumps(request.chat_template_kwargs or {}, default=repr),
        request.adapter,
        options,
    )
    if request.row_key is not None:
        whole += (request.row_key,)
    return hashlib.blake2b(repr(whole).encode(errors="surrogatepass"), digest_size=KEY_BYTES, key=engine).digest()


def cells_key(cells: str, engine: bytes) -> bytes:
    """Return the key of a row that can't be asked.

    Args:
        cells: what tells the row from others: the name that the user gave it or, without one, its cells.
        engine: as in ``request_key``.
    """
    return hashlib.blake2b(cells.encode(errors="surrogatepass"), digest_size=KEY_BYTES, key=engine).digest()


def identity_digest(identity: Mapping[str, str]) -> bytes:
    """Return a digest of what stands for the model and the engine's settings."""
    text = json.dumps(identity, sort_keys=True)
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=32).digest()


def _message(message: Message) -> Any:
    fields = json.dumps(message.fields, default=repr)
    return message.role, [_part(part) for part in message.content], fields


def _part(part: Content) -> str | tuple[str, str]:
    return part if isinstance(part, str) else (part.kind, part.digest.hex())
