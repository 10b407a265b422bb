"""A row as vLLM takes it: its prompt as token ids."""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from daft_vllm.engine.requests.content import Media
from daft_vllm.engine.requests.toolbox import Toolbox

if TYPE_CHECKING:
    from vllm import SamplingParams

TOKEN_BYTES = 4
"""Bytes of a packed token id."""


def pack_tokens(token_ids: Sequence[int]) -> bytes:
    """Return token ids, each below 2**31, as native 32-bit integers: a seventh of the memory of a list of them."""
    return struct.pack(f"{len(token_ids)}i", *token_ids)  # 7 µs for 512; array and numpy take 14 and 19


def unpack_tokens(*packed: bytes) -> list[int]:
    """Return what ``pack_tokens`` was given, all pieces in one list."""
    tokens = array("i")
    for piece in packed:
        tokens.frombytes(piece)
    return tokens.tolist()


class Prepared(NamedTuple):
    """A row as the renderer leaves it.

    Attributes:
        tokens: the prompt's token ids, from ``pack_tokens``.
        params: vLLM's sampling parameters.
        guided: whether the output is held to a format.
        recipe: digest of everything but the prompt that determines the answer; empty if the answer is drawn at random.
        media: digest of what the prompt's tokens don't tell: its media, and the adapter. Empty: none.
        thinking: whether the answer begins with the model's thinking; None: as the template has it, never split off.
        items: the prompt's media, in order; each has its placeholder among the tokens.
        toolbox: tools that the model may call.
        adapter: name of the LoRA adapter.
    """

    tokens: bytes
    params: SamplingParams
    guided: bool
    recipe: bytes = b""
    media: bytes = b""
    thinking: bool | None = None
    items: tuple[Media, ...] = ()
    toolbox: Toolbox | None = None
    adapter: str | None = None

    def digest(self) -> bytes | None:
        """Return what rows have in common whose answers are the same, or None if the answer is drawn at random."""
        if not self.recipe:
            return None
        return b"".join((self.recipe, self.media, hashlib.sha256(self.tokens).digest()))
