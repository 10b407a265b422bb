"""Sets of characters as ranges of code points, for regular expressions that Python and ECMA 262 read differently."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

Ranges = tuple[tuple[int, int], ...]
"""Sorted, disjoint, both ends included."""

EVERYTHING: Ranges = ((0, 0xD7FF), (0xE000, 0x10FFFF))
"""All characters except surrogates, which no text contains."""


def union(*several: Iterable[tuple[int, int]]) -> Ranges:
    """Return the characters that are in any of the sets."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(pair for ranges in several for pair in ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


def minus(ranges: Ranges, removed: Ranges) -> Ranges:
    """Return the characters of ``ranges`` that are not in ``removed``."""
    left = list(ranges)
    for low, high in removed:
        left = [
            (a, b)
            for start, end in left
            for a, b in ((start, min(end, low - 1)), (max(start, high + 1), end))
            if a <= b
        ]
    return tuple(left)


class CharSet(NamedTuple):
    """A set of characters that Python and ECMA 262 may read differently.

    Attributes:
        certain: the characters that are in the set by every reading.
        possible: the characters that are in the set by at least one reading.
    """

    certain: Ranges
    possible: Ranges

    @classmethod
    def of(cls, *pairs: tuple[int, int]) -> CharSet:
        """Return a set that is the same by every reading."""
        return cls(union(pairs), union(pairs))

    def __invert__(self) -> CharSet:
        return CharSet(minus(EVERYTHING, self.possible), minus(EVERYTHING, self.certain))

    def __or__(self, other: object) -> CharSet:
        assert isinstance(other, CharSet)
        return CharSet(union(self.certain, other.certain), union(self.possible, other.possible))


_LINE_ENDS = ((10, 10), (13, 13), (0x2028, 0x2029))
_ASCII_SPACE = ((9, 13), (32, 32))
_SPACE = union(
    _ASCII_SPACE,
    [(28, 31), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F)],
    [(0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)],
)
_ASCII_DIGITS = ((48, 57),)
_ASCII_WORD = union(_ASCII_DIGITS, [(65, 90), (95, 95), (97, 122)])
# Blocks without digits, roughly. The first digits after ASCII are Arabic's at U+0660. The CJK blocks have none.
_NO_DIGITS = union([(0, 47), (58, 0x65F), (0x3000, 0xA61F)])

DOT = CharSet(minus(EVERYTHING, _LINE_ENDS), EVERYTHING)
DIGIT = CharSet(_ASCII_DIGITS, minus(EVERYTHING, _NO_DIGITS))
SPACE = CharSet(_ASCII_SPACE, _SPACE)
WORD = CharSet(_ASCII_WORD, union(_ASCII_WORD, [(128, 0x10FFFF)]))
