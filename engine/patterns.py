"""Regular expressions of schemas: how long their texts are, and how to hold them to a length."""

from __future__ import annotations

import re
from re import _constants, _parser  # type: ignore[attr-defined]  # the standard library's own parser

_ENDLESS = 1 << 31


def pattern_within(pattern: str, low: int, high: int | None) -> str | None:
    """Return a pattern that matches what ``pattern`` matches and has ``low`` to ``high`` characters.

    None if that can't be written: a length can be set on a pattern that repeats one character class
    (``^[a-z]*$``), and is said already by one whose texts all have such a length. A pattern stands for the whole text
    here, as xgrammar takes it.
    """
    if low == 0 and high is None:
        return pattern
    try:
        parsed = _parser.parse(pattern)
    except re.error:
        return None
    shortest, longest = parsed.getwidth()
    if shortest >= low and (high is None or longest <= high):
        return pattern
    items = [item for item in parsed if item[0] is not _constants.AT]
    if len(items) != 1 or items[0][0] not in (_constants.MAX_REPEAT, _constants.MIN_REPEAT):
        return None
    least, most, repeated = items[0][1]
    if len(repeated) != 1 or repeated.getwidth() != (1, 1):
        return None
    found = re.fullmatch(r"\^?(?P<one>.*?)(?:\*|\+|\{\d*,?\d*\})\$?", pattern, re.DOTALL)
    if found is None:
        return None
    least = max(least, low)
    most = min(most, _ENDLESS if high is None else high)
    if least > most:
        return None
    return f"^{found['one']}{{{least},{'' if most >= _ENDLESS else most}}}$"
