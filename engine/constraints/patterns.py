"""Rewrite regular expressions for the grammar libraries: for whole answers, and for the text inside a JSON string.

A schema's pattern is searched for in the value, and describes the characters of the value. xgrammar 0.2 matches it with
the whole JSON text of the string instead. If the pattern demands a quote or a backslash, xgrammar writes it without an
escape, which ends the string. It supports no anchor on one side only, and lacks much of the other syntax.

So each pattern is parsed by Python's own parser and rewritten with only classes, groups and counts:

- Quotes, backslashes and control characters are escaped where the pattern demands them, and left out of classes.
- A side without an anchor is open: any text may stand there.
- Where Python and ECMA 262 differ (words, space, the dot), only what both match is kept.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Sequence
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]  # the standard library's own parser
from typing import Any

from daft_vllm.engine.constraints.charsets import DIGIT, DOT, EVERYTHING, SPACE, WORD, CharSet, Ranges, minus, union
from daft_vllm.engine.constraints.limits.work import spend

_ENDLESS = 1 << 31
# xgrammar 0.2.8 turns a pattern of only printable ASCII into one automaton. This takes minutes for two long counts in a
# row, and fails in the compiler for a count above 128. If the pattern has a character outside ASCII, xgrammar uses its
# other method. This character has a count of 0, so it is never matched.
_NOT_ASCII = "\x80{0,0}"
_ESCAPED: Ranges = union([(0, 31), (34, 34), (92, 92), (127, 128)])
"""Characters that are left out of classes: those that JSON escapes, DEL, and the one in ``_NOT_ASCII``."""
_SURROGATES = r"\ud800-\udfff"
"""Added to negated classes: xgrammar 0.2 reads the bytes of a surrogate as one character, a tokenizer as three."""
_CATEGORIES = {
    op.CATEGORY_DIGIT: DIGIT,
    op.CATEGORY_NOT_DIGIT: ~DIGIT,
    op.CATEGORY_SPACE: SPACE,
    op.CATEGORY_NOT_SPACE: ~SPACE,
    op.CATEGORY_WORD: WORD,
    op.CATEGORY_NOT_WORD: ~WORD,
}
_UNSUPPORTED = {
    op.ASSERT: "a lookahead or lookbehind assertion",
    op.ASSERT_NOT: "a negative lookahead or lookbehind assertion",
    op.AT: "a word boundary or an anchor in the middle",
    op.GROUPREF: "a back reference",
}
_REPEATS = (op.MAX_REPEAT, op.MIN_REPEAT)
_FLAGS = re.IGNORECASE | re.MULTILINE | re.DOTALL | re.VERBOSE | re.ASCII | re.LOCALE


class UnsupportedPattern(Exception):
    """A pattern that can't be written with classes, groups and counts."""


@functools.lru_cache(maxsize=1024)
def json_text_pattern(pattern: str, low: int = 0, high: int | None = None) -> str:
    """Return an anchored pattern for the JSON text of strings in which ``pattern`` is found.

    The strings have ``low`` to ``high`` characters. A length can be enforced if the pattern is anchored on both sides
    and only one part of it varies in length, by a count of one character class: ``^[a-z][a-z0-9-]*$``.

    Raises:
        UnsupportedPattern: the pattern has lookaround, back references, word boundaries or flags, Python can't read it,
            or the length can't be enforced.
    """
    parsed = _parsed(pattern)
    if low or high is not None:
        return f"^{_NOT_ASCII}{_JSON.sequence(_limited_to_length(parsed, low, high))}$"
    return f"^{_NOT_ASCII}{_JSON.searched(list(parsed), True, True)}$"


@functools.lru_cache(maxsize=1024)
def text_pattern(pattern: str) -> str:
    """Return a pattern of the texts that ``pattern`` matches from beginning to end (``re.fullmatch``).

    Raises:
        UnsupportedPattern: as ``json_text_pattern`` does.
    """
    return _NOT_ASCII + _PLAIN.searched(list(_parsed(pattern)), False, False)


@functools.lru_cache(maxsize=1024)
def rust_pattern(pattern: str, *, search: bool = True) -> str:
    r"""Return a pattern for llguidance that only matches what ``pattern`` matches in both Python and ECMA 262.

    In Rust's syntax ``\s`` doesn't include U+001C to U+001F, in Python's it does. Classes are written without control
    characters: if a class has them but not the quote, llguidance 1.7 still allows a quote.

    Args:
        pattern: in the syntax of schemas, or Python's.
        search: True: the pattern is searched for. False: it has to match from beginning to end.

    Raises:
        UnsupportedPattern: as ``json_text_pattern`` does.
    """
    text = _RUST.searched(list(_parsed(pattern)), search, search)
    return f"^{text}$" if search else text


def _parsed(pattern: str) -> Any:
    try:
        parsed = _parser.parse(pattern)
    except (re.error, RecursionError, OverflowError) as e:
        raise UnsupportedPattern(f"Python can't read the pattern: {e}") from None
    if parsed.state.flags & _FLAGS:
        raise UnsupportedPattern("a pattern can't have flags")
    return parsed


def pattern_of_length(low: int, high: int | None) -> str:
    """Return the pattern of JSON texts of ``low`` to ``high`` characters, none of them escaped.

    If one count covers escapes as well as plain characters, xgrammar takes milliseconds per token.
    """
    return f"^{_NOT_ASCII}{_JSON.anything}{_count(low, _ENDLESS if high is None else high)}$"


def pattern_without(values: Sequence[str]) -> str:
    """Return an anchored pattern, in the syntax of schemas, of all texts except ``values``."""
    return f"^{_outside(sorted(set(values)), 0)}$"


def _outside(values: Sequence[str], at: int) -> str:
    """Return a pattern of what may follow the first ``at`` characters, so that the text is none of ``values``.

    All ``values`` begin with the same ``at`` characters.
    """
    ended = any(len(value) == at for value in values)
    following = sorted({value[at] for value in values if len(value) > at})
    listed = "".join(_code(ord(char)) for char in following)
    anything = "[^\\uffff]"  # unlike the dot, it includes line ends
    options = [f"[^{listed}]{anything}*" if following else f"{anything}+"]
    options += [
        f"[{_code(ord(char))}]" + _outside([value for value in values if len(value) > at and value[at] == char], at + 1)
        for char in following
    ]
    return f"(?:{'|'.join(options)}){'' if ended else '?'}"


def _limited_to_length(parsed: Any, low: int, high: int | None) -> list[Any]:
    """Return the items of an anchored pattern, changed to match only texts of ``low`` to ``high`` characters."""
    items = list(parsed)
    if len(items) < 2 or items[0] != (op.AT, op.AT_BEGINNING) or items[-1] != (op.AT, op.AT_END):
        raise UnsupportedPattern("a length needs a pattern that is anchored on both sides")
    items = items[1:-1]
    widths = [_width(item) for item in items]
    shortest, longest = sum(width[0] for width in widths), sum(width[1] for width in widths)
    most = _ENDLESS if high is None else high
    if shortest >= low and (longest <= most or most >= _ENDLESS):
        return items
    varying = [i for i, width in enumerate(widths) if width[0] != width[1]]
    if len(varying) != 1 or items[varying[0]][0] not in _REPEATS or _width(items[varying[0]][1][2]) != (1, 1):
        raise UnsupportedPattern(
            "a length needs a pattern in which exactly one part, a count of one class, varies in length"
        )
    place = varying[0]
    kind, (least, limit, repeated) = items[place]
    fixed = shortest - widths[place][0]
    least, limit = max(least, low - fixed), min(limit, most - fixed if most < _ENDLESS else _ENDLESS)
    if least > limit:
        raise UnsupportedPattern("no text has this pattern and this length")
    items[place] = (kind, (least, limit, repeated))
    return items


def _width(item: Any) -> tuple[int, int]:
    """Return the fewest and the most characters that a parsed item or sequence matches."""
    sequence = item if isinstance(item, _parser.SubPattern) else _parser.SubPattern(_parser.State(), [item])
    try:
        low, high = sequence.getwidth()
    except IndexError:  # it refers to a group outside the sequence
        raise UnsupportedPattern("a back reference is not supported in a pattern") from None
    return int(low), int(high)


def _set_of(kind: Any, value: Any) -> CharSet:
    if kind is op.ANY:
        return DOT
    if kind is op.NOT_LITERAL:
        return ~CharSet.of((value, value))
    negated = value[0][0] is op.NEGATE
    whole = CharSet((), ())
    for one, what in value[1:] if negated else value:
        if one is op.LITERAL:
            whole |= CharSet.of((what, what))
        elif one is op.RANGE:
            whole |= CharSet.of(what)
        else:
            whole |= _CATEGORIES[what]
    return ~whole if negated else whole


_NO_CHARACTERS = ((0xD800, 0xDFFF),)


def _ends(items: Any) -> bool:
    """Whether a sequence ends with an anchor."""
    return bool(items) and items[-1][0] is op.AT and items[-1][1] in (op.AT_END, op.AT_END_STRING)


def _ranges(ranges: Ranges) -> str:
    return "".join(_code(low) + (f"-{_code(high)}" if high > low else "") for low, high in ranges)


def _code(code: int) -> str:
    if code > 0xFFFF:
        return chr(code)
    return chr(code) if chr(code).isascii() and chr(code).isalnum() else f"\\u{code:04x}"


def _count(low: int, high: int) -> str:
    if (low, high) == (0, 1):
        return "?"
    if high >= _ENDLESS:
        return "*" if low == 0 else "+" if low == 1 else f"{{{low},}}"
    return f"{{{low}}}" if low == high else f"{{{low},{high}}}"


class _Writer:
    """Writes parsed patterns.

    Args:
        escaped: characters that are left out of classes.
        spelt: returns how a character is written where a pattern demands it.
        excludes: whether a class may be negated (``[^...]``).
    """

    def __init__(self, escaped: Ranges, spelt: Callable[[str], str], *, excludes: bool = True) -> None:
        self._escaped = escaped
        self._spelt = spelt
        self._excludes = excludes
        self.anything = self._class(EVERYTHING)

    def searched(self, items: list[Any], open_left: bool, open_right: bool) -> str:
        """Return the pattern of a sequence. Other text may stand on its open sides, except where it has an anchor."""
        spend(10, "")
        while items and items[0][0] is op.AT and items[0][1] in (op.AT_BEGINNING, op.AT_BEGINNING_STRING):
            items, open_left = items[1:], False
        while _ends(items):
            items, open_right = items[:-1], False
        if len(items) == 1 and items[0][0] is op.SUBPATTERN and not items[0][1][1] and not items[0][1][2]:
            return self.searched(list(items[0][1][3]), open_left, open_right)
        if len(items) == 1 and items[0][0] is op.BRANCH:
            branches = [self.searched(list(branch), open_left, open_right) for branch in items[0][1][1]]
            return f"(?:{'|'.join(branches)})"
        if items and items[-1][0] is op.BRANCH and any(_ends(branch) for branch in items[-1][1][1]):
            # Python's parser puts the common beginning of branches in front of them: ^ab$|^ac$ becomes ^a(?:b$|c$).
            branches = [self.searched([*items[:-1], *branch], open_left, open_right) for branch in items[-1][1][1]]
            return f"(?:{'|'.join(branches)})"
        if open_left and open_right and sum(_width(item)[0] for item in items) == 0:
            return f"{self.anything}*"  # it matches an empty text, so it is found in every text
        left, right = (f"{self.anything}*" if is_open else "" for is_open in (open_left, open_right))
        return left + self.sequence(items) + right

    def sequence(self, items: Iterable[Any]) -> str:
        """Return the pattern of items that follow each other."""
        return "".join(map(self._text, items))

    def _text(self, item: Any) -> str:
        kind, value = item
        if kind is op.LITERAL:
            return self._literal(value)
        if kind in (op.NOT_LITERAL, op.ANY, op.IN):
            return self._class(_set_of(kind, value).certain)
        if kind is op.BRANCH:
            return f"(?:{'|'.join(self.sequence(branch) for branch in value[1])})"
        if kind is op.SUBPATTERN and not value[1] and not value[2]:
            return f"(?:{self.sequence(value[3])})"
        if kind in _REPEATS:
            low, high, repeated = value
            return f"(?:{self.sequence(repeated)}){_count(int(low), int(high))}"
        what = _UNSUPPORTED.get(kind) or str(kind).lower().replace("_", " ")
        raise UnsupportedPattern(f"{what} is not supported in a pattern")

    def _class(self, ranges: Ranges) -> str:
        """Return a class of the characters that need no escape. If all need one, return a choice of their escapes."""
        ranges = minus(ranges, _NO_CHARACTERS)
        plain = minus(ranges, self._escaped)
        if not plain:
            escapes = [self._literal(code) for low, high in ranges for code in range(low, high + 1)]
            if not escapes:
                raise UnsupportedPattern("a class of the pattern is empty")
            return f"(?:{'|'.join(escapes)})"
        others = minus(EVERYTHING, plain)
        if self._excludes and plain[-1][1] == EVERYTHING[-1][1]:
            return f"[^{_ranges(others)}{_SURROGATES}]"
        return f"[{_ranges(plain)}]"

    def _literal(self, code: int) -> str:
        if 0xD800 <= code <= 0xDFFF:
            raise UnsupportedPattern("the pattern has half of a surrogate pair, which is no character")
        return "".join(map(_code, map(ord, self._spelt(chr(code)))))


_JSON = _Writer(_ESCAPED, lambda char: json.dumps(char, ensure_ascii=False)[1:-1])
_PLAIN = _Writer(union([(128, 128)]), str)
_RUST = _Writer(((0, 31),), str, excludes=False)


def shortest_match(pattern: str, most: int = 200_000) -> str:
    """Return a text as long as the shortest match of a pattern. Empty if Python can't read the pattern.

    Args:
        pattern: the pattern.
        most: the most characters of the text, also where every match has more.
    """
    try:
        return "x" * min(most, int(_parser.parse(pattern.replace(_NOT_ASCII, "")).getwidth()[0]))
    except (re.error, RecursionError, OverflowError):
        return ""
