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
    """Return the token ids that ``pack_tokens`` packed, those of all pieces in one list."""
    tokens = array("i")
    for piece in packed:
        tokens.frombytes(piece)
    return tokens.tolist()


class Prepared(NamedTuple):
    """A row after the renderer has prepared it.

    Attributes:
        tokens: the prompt's token ids, from ``pack_tokens``.
        params: vLLM's sampling parameters.
        constrained: whether the output has to satisfy a constraint.
        options_digest: digest of everything but the prompt that determines the answer; empty if the answer is random.
        media: digest of what the prompt's tokens don't show: its media, and the adapter. Empty: it has neither.
        thinking: whether the answer begins with the model's thinking. None: the template decides, and thinking is never
            split off.
        items: the prompt's media, in order; each has its placeholder among the tokens.
        toolbox: tools that the model may call.
        adapter: name of the LoRA adapter.
    """

    tokens: bytes
    params: SamplingParams
    constrained: bool
    options_digest: bytes = b""
    media: bytes = b""
    thinking: bool | None = None
    items: tuple[Media, ...] = ()
    toolbox: Toolbox | None = None
    adapter: str | None = None

    def digest(self) -> bytes | None:
        """Return a digest that is the same for rows with the same answer. None if the answer is random."""
        if not self.options_digest:
            return None
        return b"".join((self.options_digest, self.media, hashlib.sha256(self.tokens).digest()))
