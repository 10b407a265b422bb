"""Prompts as vLLM's prefix cache sees them: sequences of full KV blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]

_TOKEN_BYTES = 4
_END = bytes(_TOKEN_BYTES)  # below every token, so that a prompt comes before those that it is a prefix of
_SEQUENCE_BYTES = 8
_TAIL_BYTES = len(_END) + _SEQUENCE_BYTES


def order_key(tokens: Tokens, block_size: int, sequence: int, media: bytes = b"") -> bytes:
    """Return the key by which a prompt is ordered: byte order of keys is the order of the sweep.

    Keys order by media first, then by the tokens of the full KV blocks, shorter prompts before those that go on, then
    by ``sequence``. The tokens after the last full block can't be shared and don't count.

    Args:
        tokens: the prompt's token ids, at least 0, 1 dimension.
        block_size: tokens of a KV block.
        sequence: number of the row in order of arrival; makes the key unique.
        media: digest of the prompt's images and other media, at most ``4 * block_size`` bytes. Empty: none.
    """
    full = tokens.size // block_size * block_size
    # Big-endian, one higher than the id: byte order is token order, and _END is lower than any token.
    blocks = (tokens[:full] + 1).byteswap().tobytes()
    head = media.ljust(block_size * _TOKEN_BYTES, b"\0") if media else b""
    return b"".join((head, blocks, _END, sequence.to_bytes(_SEQUENCE_BYTES, "big")))


def key_tokens(key: bytes, block_size: int, media: bytes = b"") -> Tokens:
    """Return the tokens of the full KV blocks of the prompt that ``key`` was made of."""
    start = block_size * _TOKEN_BYTES if media else 0
    count = (len(key) - _TAIL_BYTES - start) // _TOKEN_BYTES
    return np.frombuffer(key, dtype=np.int32, count=count, offset=start).byteswap() - 1


def shared_blocks(key: bytes, other: bytes, block_size: int, guess: int = 0) -> int:
    """Return how many blocks two keys of ``order_key`` have in common from the start, a block of media among them.

    Args:
        key: a key, or nothing.
        other: a key.
        block_size: tokens of a KV block.
        guess: the answer for the pair before, which it often is again. Any number is right.
    """
    width = block_size * _TOKEN_BYTES
    low, high = 0, max(0, min(len(key), len(other)) - _TAIL_BYTES) // width
    if guess <= high and key[: guess * width] == other[: guess * width]:
        low = guess
        if low == high or key[low * width : (low + 1) * width] != other[low * width : (low + 1) * width]:
            return low
    while low < high:
        middle = (low + high + 1) // 2
        if key[low * width : middle * width] == other[low * width : middle * width]:
            low = middle
        else:
            high = middle - 1
    return low


def computed_tokens(size: int, shared: int, block_size: int) -> int:
    """Return how many tokens of a prompt of ``size`` tokens are computed when ``shared`` blocks of it are cached.

    vLLM always computes the last token of a prompt, and caches whole blocks: a prompt that is cached to its very end is
    computed from its last block on.
    """
    return size - min(shared, (size - 1) // block_size) * block_size


def optimal_prompt_tokens(prompts: Iterable[Sequence[int] | Tokens], block_size: int) -> int:
    """Return the fewest prompt tokens that any order of ``prompts`` could compute, with a cache that forgets nothing.

    In sorted order the predecessor of a prompt shares with it the most that any earlier one does, so one pass over
    neighbours counts every distinct block once.
    """
    arrays = [np.asarray(prompt, dtype=np.int32) for prompt in prompts]
    keyed = sorted((order_key(tokens, block_size, i), tokens.size) for i, tokens in enumerate(arrays))
    total = 0
    previous = b""
    for key, size in keyed:
        total += computed_tokens(size, shared_blocks(previous, key, block_size), block_size)
        previous = key
    return total
