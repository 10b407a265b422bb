"""Prompts as vLLM's prefix cache sees them: sequences of full KV blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from daft_vllm.engine.requests.prepared import TOKEN_BYTES, pack_tokens, unpack_tokens

_END = b"\xff" * TOKEN_BYTES  # above every token: the highest bit of a token is 0
_SEQUENCE_BYTES = 8
_TAIL_BYTES = len(_END) + _SEQUENCE_BYTES
_LAST_SEQUENCE = (1 << 8 * _SEQUENCE_BYTES) - 1

SWEEP_START = b"\xff" * (_TAIL_BYTES + 1)
"""Above every key without media: a sweep goes downwards from here."""


def order_key(tokens: bytes, block_size: int, sequence: int, media: bytes = b"") -> bytes:
    """Return the key by which a prompt is ordered; a sweep goes through keys from the highest to the lowest.

    Prompts with the same media and the same full KV blocks are next to each other, in order of ``sequence``. Right
    after them come the prompts that continue after these blocks. The order of two different blocks has no meaning. The
    tokens after the last full block can't be shared: they come last in the key, where they don't affect the order.

    Args:
        tokens: the prompt's token ids, from ``pack_tokens``.
        block_size: tokens of a KV block.
        sequence: number of the row in order of arrival, below ``2**64``; makes the key unique.
        media: digest of the prompt's images and other media, at most ``4 * block_size`` bytes. Empty: none.
    """
    full = len(tokens) // (block_size * TOKEN_BYTES) * (block_size * TOKEN_BYTES)
    number = (_LAST_SEQUENCE - sequence).to_bytes(_SEQUENCE_BYTES, "big")
    head = media.ljust(block_size * TOKEN_BYTES, b"\0") if media else b""
    return b"".join((head, tokens[:full], _END, number, tokens[full:]))


def key_tokens(key: bytes, block_size: int, size: int, media: bytes = b"") -> list[int]:
    """Return the token ids of the prompt of ``size`` tokens that ``key`` was made of."""
    start = block_size * TOKEN_BYTES if media else 0
    end = start + size // block_size * block_size * TOKEN_BYTES
    return unpack_tokens(key[start:end], key[end + _TAIL_BYTES :])


def shared_blocks(key: bytes, other: bytes, block_size: int, guess: int = 0) -> int:
    """Return how many blocks two keys of ``order_key`` have in common from the start, a block of media among them.

    Args:
        key: a key, or nothing.
        other: a key.
        block_size: tokens of a KV block.
        guess: a guess of the answer, such as the answer for the previous pair. It affects only the speed.
    """
    width = block_size * TOKEN_BYTES
    low, high = 0, max(0, min(len(key), len(other)) - _TAIL_BYTES) // width
    if guess <= high and other.startswith(key[: guess * width]):
        low = guess
        if low == high or not other.startswith(key[low * width : (low + 1) * width], low * width):
            return low
    while low < high:
        middle = (low + high + 1) // 2
        if other.startswith(key[low * width : middle * width], low * width):
            low = middle
        else:
            high = middle - 1
    return low


def computed_tokens(size: int, shared: int, block_size: int) -> int:
    """Return how many tokens of a prompt of ``size`` tokens are computed when ``shared`` blocks of it are cached.

    vLLM always computes the last token of a prompt, and caches whole blocks. So if a prompt is cached to its end, its
    last block is computed again.
    """
    return size - min(shared, (size - 1) // block_size) * block_size


def optimal_prompt_tokens(prompts: Iterable[Sequence[int]], block_size: int) -> int:
    """Return the fewest prompt tokens that any order of ``prompts`` could compute, with a cache that forgets nothing.

    In the order of a sweep, no earlier prompt shares more blocks with a prompt than the one right before it. So one
    pass over neighbours counts every distinct block once.
    """
    keyed = [(order_key(pack_tokens(prompt), block_size, i), len(prompt)) for i, prompt in enumerate(prompts)]
    total = 0
    previous = b""
    for key, size in sorted(keyed, reverse=True):
        total += computed_tokens(size, shared_blocks(previous, key, block_size), block_size)
        previous = key
    return total
