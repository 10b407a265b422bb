"""Formats of strings: which ones are enforced, and patterns for those that the libraries enforce too loosely."""

from __future__ import annotations

_MONTHS = "(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8])"
_YEAR = "([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP_YEAR = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([2468][048]|0[48]|[13579][26])00)"
_DATE = f"({_YEAR}-({_MONTHS})|{_LEAP_YEAR}-02-29)"
_CLOCK = "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.][0-9]{1,6})?"
_OFFSET = "(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_ATOM = "[A-Za-z0-9_+-]+"
_HOST = "([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?[.]){1,8}[a-z]{2,24}"
_SHORT_HOST = "([a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?[.]){1,4}[a-z]{2,12}"
_LABEL = "[a-z0-9]([a-z0-9]{0,60}[a-z0-9])?"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_H = "[0-9a-f]{1,4}"
_IPV6 = "|".join(
    (
        f"({_H}:){{7}}{_H}",
        f"({_H}:){{1,7}}:",
        *(f"({_H}:){{1,{7 - n}}}(:{_H}){{1,{n}}}" for n in range(1, 7)),
        f":((:{_H}){{1,7}}|:)",
    )
)

PATTERNS = {
    "date": f"^{_DATE}$",
    "time": f"^{_CLOCK}{_OFFSET}$",
    "date-time": f"^{_DATE}T{_CLOCK}{_OFFSET}$",
    "hostname": f"^{_LABEL}([.]{_LABEL}){{0,3}}$",
    "relative-json-pointer": "^(0|[1-9][0-9]?)(#|(/[A-Za-z0-9_.-]*)+)$",
    "uri-template": "^[A-Za-z0-9._~:/?&=#-]*([{][A-Za-z_][A-Za-z0-9_]*[}][A-Za-z0-9._~:/?&=#-]*)*$",
    "ipv4": f"^{_BYTE}([.]{_BYTE}){{3}}$",
    "ipv6": f"^({_IPV6})$",
    "json-pointer": "^(/([^/~]|~[01])*)*$",
    "email": f"^{_ATOM}([.]{_ATOM})*@{_HOST}$",
}
"""Patterns that only match what both the format and Python's types allow: days that the month has, years from 1 on, at
most microseconds, email addresses without quoted parts. xgrammar 0.2 accepts the 30th of February as a date, 07.1.1.1
as an address, and quotes without an escape in a JSON pointer. llguidance 1.7 accepts second 60 of any minute as a time.
"""

CLOCK_PATTERN = f"^{_CLOCK}$"
"""A time of day without a time zone."""
LOCAL_DATE_TIME_PATTERN = f"^{_DATE}T{_CLOCK}$"
"""A point in time without a time zone."""


def url_pattern(schemes: list[str]) -> str:
    """Return a pattern of URLs that have one of ``schemes``, a host name, and fewer than 500 characters."""
    path = "[A-Za-z0-9._~%!$&'()*+,;=:@/-]"
    return f"^({'|'.join(schemes)})://{_SHORT_HOST}(:[1-9][0-9]{{0,3}})?(/{path}{{0,150}})?([?]{path}{{0,80}})?$"


_OTHERS = ("duration", "uuid", "uri", "uri-reference", "idn-email", "idn-hostname", "iri", "iri-reference", "regex")
ASSERTED = frozenset((*PATTERNS, *_OTHERS))
"""Formats of the specification, which are enforced. All others are annotations."""
