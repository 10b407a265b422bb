"""What messages say of paths, URLs and errors: one short line, without passwords and signatures."""

from __future__ import annotations

import re

_MOST = 200
_MOST_OF_ERROR = 300
_URL = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]*:")
_USER = re.compile(r"^([^/?#]*[/\\]{2})[^/?#]*@")
_USERS = re.compile(r"(//)[^/\s@'\"]{1,1000}@")
_QUERIES = re.compile(r"\?[^\s'\"()<>]+")


def shown(place: str) -> str:
    """Return a path or URL in quotes, for a message.

    It is cut, and a URL is without its user, password, query and fragment: they may be secret. Of a ``data:`` URL only
    what comes before the data is left.
    """
    head = place[: 8 * _MOST]
    if head.startswith("data:"):
        head = head.partition(",")[0]
    elif _URL.match(head):
        bare = re.split(r"[?#]", head, maxsplit=1)[0]
        head = _USER.sub(r"\1", bare) + ("?..." if len(bare) < len(head) else "")
    quoted = repr(head)
    return quoted if len(quoted) <= _MOST else f"{quoted[:_MOST]}...{quoted[0]}"


def brief(error: BaseException) -> str:
    """Return an error's type and message, in one line that is cut. URLs in it are without users and queries."""
    text = " ".join(str(error)[: 8 * _MOST_OF_ERROR].split())
    text = _QUERIES.sub("?...", _USERS.sub(r"\1", text))
    text = "".join(c if c.isprintable() else "?" for c in text)  # a server may have written it, for a terminal
    return f"{type(error).__name__}: {text[:_MOST_OF_ERROR]}"
