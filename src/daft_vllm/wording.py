"""Pieces of messages: numbers with their nouns, and what rows, places and other libraries say, in one short line."""

from __future__ import annotations

import re

from daft_vllm.secrets import without_secrets

MOST = 200
"""Characters of what a row, a place or another library says that a message shows."""

_URL = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]*:")
_USER = re.compile(r"^([^/?#]*[/\\]{2})[^/?#]*@")


def counted(number: float, noun: str, plural: str | None = None) -> str:
    """Return ``"1 row"`` or ``"2 rows"``. ``plural``: the noun with an ending other than ``s``."""
    shown = int(number) if number == int(number) else number
    return f"{shown} {noun if number == 1 else plural or f'{noun}s'}"


def visible(text: str) -> str:
    r"""Return a text in which characters that can't be seen are written as Python writes them (``\x1b``).

    On a terminal they could do anything. Line ends are among them.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def line_of(text: str, most: int = MOST) -> str:
    """Return a text as one line of at most ``most`` characters and three dots.

    White space is one blank, and characters are ``visible``.
    """
    line = visible(" ".join(text[: 8 * most].split()))
    return line if len(line) <= most and len(text) <= 8 * most else f"{line[:most]}..."


def safe_line(text: str, most: int = MOST) -> str:
    """Return a text as ``line_of`` does, without secrets.

    A long one is cut first, since secrets are not looked for in megabytes. It is cut between words: half a token would
    not be recognized.
    """
    head = text[: 8 * most]
    if len(head) == len(text):
        return line_of(without_secrets(text), most)
    line = line_of(without_secrets(head.rpartition(" ")[0] or head), most)
    return line if line.endswith("...") else f"{line}..."


def shown(place: str) -> str:
    """Return a path, a URL or a name in quotes, for a message.

    It is cut, and a URL is without its user, password, query and fragment: they may be secret. Of a ``data:`` URL only
    what comes before the data is left.
    """
    head = place[: 8 * MOST]
    if head.startswith("data:"):
        head = head.partition(",")[0]
    elif _URL.match(head):
        bare = re.split(r"[?#]", head, maxsplit=1)[0]
        head = _USER.sub(r"\1", bare) + ("?..." if len(bare) < len(head) else "")
    quoted = repr(head)
    return quoted if len(quoted) <= MOST else f"{quoted[:MOST]}...{quoted[0]}"


def brief(error: BaseException, most: int = MOST) -> str:
    """Return an error's type and message, in one line that is cut, without secrets."""
    return f"{type(error).__name__}: {safe_line(str(error), most)}"
