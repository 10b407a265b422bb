r"""Writes a regular expression of Python's in the syntax of Rust's, with the same meaning.

Python's ``re`` tries one way after the other: with ``^(a+)+$`` each further character of a text doubles the time.
Rust's engine takes time in proportion to the text. The two read classes and ends of lines differently, so the
expression is parsed by Python's own parser, and written with the characters that Python means.
"""

from __future__ import annotations

import functools
import re
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]  # the standard library's own parser
from typing import Any

_ENDLESS = 1 << 31
_FLAGS = re.IGNORECASE | re.MULTILINE | re.LOCALE | re.ASCII
"""Flags that change what the parts of an expression mean. ``re.VERBOSE`` is done with when it is parsed."""
_CATEGORIES = {
    op.CATEGORY_DIGIT: (r"\d", ""),
    op.CATEGORY_NOT_DIGIT: (r"\d", "^"),
    op.CATEGORY_SPACE: (r"\s", ""),
    op.CATEGORY_NOT_SPACE: (r"\s", "^"),
    op.CATEGORY_WORD: (r"\w", ""),
    op.CATEGORY_NOT_WORD: (r"\w", "^"),
}
_BEGINNINGS = (op.AT_BEGINNING, op.AT_BEGINNING_STRING)
_ENDS = (op.AT_END, op.AT_END_STRING)


class NotRust(Exception):
    """An expression that Rust's engine has no form for."""


def rust_regex(pattern: str, *, whole: bool) -> str:
    """Return an expression that Rust's engine finds in the same texts (without surrogates) as Python's.

    Args:
        pattern: in Python's syntax.
        whole: whether it has to match the text from beginning to end, as with ``re.fullmatch``. Else as ``re.search``.

    Raises:
        NotRust: it has lookaround, back references, word boundaries or flags, or Python can't read it.
    """
    try:
        parsed = _parser.parse(pattern)
    except (re.error, RecursionError, OverflowError) as e:
        raise NotRust(str(e)) from None
    if parsed.state.flags & _FLAGS:
        raise NotRust("flags")
    writer = _Writer(dot_all=bool(parsed.state.flags & re.DOTALL), whole=whole)
    text = writer.sequence(parsed, at_end=True)
    return rf"\A(?:{text})\z" if whole else text


class _Writer:
    def __init__(self, *, dot_all: bool, whole: bool) -> None:
        self._dot = r"[^\n]" if not dot_all else r"(?s:.)"
        self._whole = whole

    def sequence(self, items: Any, *, at_end: bool) -> str:
        """Return the text of items that follow each other. ``at_end``: nothing follows them in the expression."""
        last = len(items) - 1
        return "".join(self._text(*item, at_end=at_end and i == last) for i, item in enumerate(items))

    def _text(self, kind: Any, value: Any, *, at_end: bool) -> str:
        if kind is op.LITERAL:
            return _character(value)
        if kind is op.NOT_LITERAL:
            return f"[^{_character(value)}]"
        if kind is op.ANY:
            return self._dot
        if kind is op.IN:
            return _class(value)
        if kind is op.BRANCH:
            return f"(?:{'|'.join(self.sequence(branch, at_end=at_end) for branch in value[1])})"
        if kind is op.SUBPATTERN and not value[1] and not value[2]:
            return f"(?:{self.sequence(value[3], at_end=at_end)})"
        if kind in (op.MAX_REPEAT, op.MIN_REPEAT):
            low, high, repeated = int(value[0]), int(value[1]), value[2]
            count = f"{{{low},{'' if high >= _ENDLESS else high}}}"
            return f"(?:{self.sequence(repeated, at_end=False)}){count}"
        if kind is op.AT and value in _BEGINNINGS:
            return r"\A"
        if kind is op.AT and value in _ENDS:
            # Python's "$" also stands before a line end that ends the text, where it must not be read.
            if value is op.AT_END_STRING or self._whole:
                if value is op.AT_END and not at_end:
                    raise NotRust("$ in the middle")
                return r"\z"
            if at_end:
                return r"(?:\n?\z)"
        raise NotRust(str(kind).lower().replace("_", " "))


def _character(code: int) -> str:
    if 0xD800 <= code <= 0xDFFF:
        raise NotRust("half of a surrogate pair")
    return rf"\x{{{code:x}}}"


def _class(items: Any) -> str:
    negated = items[0][0] is op.NEGATE
    parts = []
    for kind, value in items[1:] if negated else items:
        if kind is op.LITERAL:
            parts.append(_character(value))
        elif kind is op.RANGE:
            parts.append(_range(*value))
        else:
            name, sign = _CATEGORIES[value]
            parts.append(f"[{sign}{_characters_of(name)}]")
    return f"[{'^' if negated else ''}{''.join(parts)}]"


def _range(low: int, high: int) -> str:
    """Return a range without surrogates, which Rust's texts don't have."""
    pieces = [(a, b) for a, b in ((low, min(high, 0xD7FF)), (max(low, 0xE000), high)) if a <= b]
    if not pieces:
        raise NotRust("half of a surrogate pair")
    return "".join(f"{_character(a)}-{_character(b)}" for a, b in pieces)


@functools.cache
def _characters_of(category: str) -> str:
    """Return the ranges of the characters that Python counts to a category. It takes a fifth of a second."""
    every = "".join(map(chr, (*range(0xD800), *range(0xE000, 0x110000))))
    return "".join(_range(ord(found[0][0]), ord(found[0][-1])) for found in re.finditer(f"{category}+", every))
