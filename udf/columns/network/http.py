"""Fetches files from HTTP servers. Each address is checked before it is connected to, also after a redirect."""

from __future__ import annotations

import io
import ipaddress
import re
import socket
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urljoin, urlsplit

from daft_vllm.engine.requests.media import MediaError
from daft_vllm.udf.columns.network.addresses import is_public
from daft_vllm.udf.columns.network.deadline import Deadline
from daft_vllm.wording import brief, shown

if TYPE_CHECKING:
    from daft_vllm.udf.columns.network.client import Place

_REDIRECTS = 5
_ATTEMPTS = 4
_BUSY = (429, 500, 502, 503, 504)
_BACKOFF = 0.5
"""Seconds. The second attempt comes at once, the third after twice as long, the fourth after four times."""
_HOST_SECONDS = 60
"""How long the addresses of a host are known at most."""
_MOST_KNOWN = 4096
_known: dict[str, tuple[float, tuple[str, ...]]] = {}
"""When a host was looked up, and its addresses."""
_CHUNK = 1 << 16
"""Bytes. Between two chunks the deadline is looked at: what is compressed may take long without a wait."""
_MOST_SKIPPED = 64 << 20
"""The most bytes that are read and thrown away to reach the middle of a file, where a server ignores ranges."""
_ENCODINGS = ("", "identity", "gzip", "x-gzip", "deflate")
"""Encodings of a body that are decoded. None is asked for, but some stores send what they hold."""
_LONGEST_URL = 1 << 16
_HOST = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")


def fetch(url: str, most: int, start: int = 0, *, seconds: float, private_network: bool = False) -> bytes:
    """Return the content at a URL from the byte ``start`` on, at most ``most`` bytes of it.

    The connection goes to exactly the address that was found to be public. So neither a redirect nor a second answer
    of the name server can lead elsewhere. If the environment names a proxy, that one has to guard the network.

    Args:
        url: an HTTP URL.
        most: the most bytes that are returned.
        start: the first byte.
        seconds: how long it may take, with the look-up of names, all redirects and all attempts.
        private_network: whether addresses that are not public may be connected to.

    Raises:
        MediaError: the address isn't public or can't be reached, the server answers with an error or redirects too
            often, or the file takes too long.
    """
    with Deadline(url, seconds) as deadline:
        try:
            return _fetched(url, most, start, deadline, private_network=private_network)
        except Exception as e:
            if deadline.is_over:
                raise deadline.error() from e
            if isinstance(e, MediaError):
                raise
            raise MediaError("unavailable_media", f"{shown(url)} can't be read: {brief(e)}") from e


def _fetched(first: str, most: int, start: int, deadline: Deadline, *, private_network: bool) -> bytes:
    url = first
    asked = {"Range": f"bytes={start}-{start + most - 1}"} if start else {}
    for _ in range(_REDIRECTS + 1):
        response = _response(url, first, asked, deadline, private_network=private_network)
        try:
            if response.status in (301, 302, 303, 307, 308) and "location" in response.headers:
                url = urljoin(url, response.headers["location"])
                continue
            if response.status == 416:  # ``start`` is beyond the end of the file
                return b""
            if response.status not in (200, 206):
                raise MediaError("unavailable_media", f"{shown(first)}: the server answers {response.status}")
            return _body(response, first, most, start if response.status == 200 else 0, deadline)
        finally:
            response.close()
    raise MediaError("unavailable_media", f"{shown(first)}: more than {_REDIRECTS} redirects")


def _body(response: Any, url: str, most: int, skip: int, deadline: Deadline) -> bytes:
    """Return the body from the byte ``skip`` on, at most ``most`` bytes of it. It is never in memory twice."""
    if skip > _MOST_SKIPPED:  # servers may ignore a range
        raise MediaError("unavailable_media", f"{shown(url)}: the server can't send a part of a file, only all of it")
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding not in _ENCODINGS:
        raise MediaError("unavailable_media", f"{shown(url)}: the server sends it in the encoding {encoding[:40]!r}")
    while skip and (chunk := response.read(min(_CHUNK, skip))):
        skip -= len(chunk)
        deadline.check()
    content = io.BytesIO()
    while content.tell() < most and (chunk := response.read(min(_CHUNK, most - content.tell()))):
        content.write(chunk)
        deadline.check()
    deadline.check()  # where the length isn't known, a connection that was shut down looks like the end of the file
    return content.getvalue()


def _response(url: str, first: str, asked: Mapping[str, str], deadline: Deadline, *, private_network: bool) -> Any:
    """Return the response of a server, after a few attempts if it is busy or can't be reached.

    Each attempt takes the next address of the host.
    """
    import urllib3

    from daft_vllm.udf.columns.network import client

    place = _place(url)
    proxy = client.proxy_of(place)
    addresses = ("",) if proxy else _checked_addresses(place.name, first, deadline, private_network=private_network)
    for attempt in range(_ATTEMPTS):
        last = attempt == _ATTEMPTS - 1
        wait = _BACKOFF * 2**attempt if attempt else 0.0
        try:
            response = client.ask(place, addresses[attempt % len(addresses)], proxy, asked, deadline)
        except (urllib3.exceptions.HTTPError, OSError) as e:
            if last or deadline.is_over or wait >= deadline.left:
                host = shown(place.host)[1:-1]
                raise MediaError("unavailable_media", f"{host} can't be reached: {brief(e)}") from e
        else:
            if last or response.status not in _BUSY:
                return response
            told = _retry_after(response.headers.get("retry-after"))
            if told is not None and told >= deadline.left:
                response.close()
                raise MediaError(
                    "unavailable_media",
                    f"{shown(first)}: the server is busy ({response.status}) and asks to wait for {told:.0f} seconds, "
                    "which is longer than files=FileAccess(max_seconds=...) allows",
                )
            wait = wait if told is None else told
            if wait >= deadline.left:
                return response
            response.close()  # unread: its body may be endless
        deadline.sleep(wait)
    raise AssertionError("the last attempt returns or raises")


def _retry_after(value: str | None) -> float | None:
    """Return the seconds that a ``Retry-After`` header asks to wait. None: it is missing, or says nothing sensible."""
    import urllib3

    if value is None or len(value) > 100:
        return None
    try:
        return urllib3.Retry().parse_retry_after(value)
    except Exception:
        return None


def _place(url: str) -> Place:
    """Split a URL into its parts. A URL that another parser could read differently is refused."""
    from daft_vllm.udf.columns.network.client import DEFAULT_PORTS, Place

    if len(url) > _LONGEST_URL:
        raise MediaError("unavailable_media", f"{shown(url)} is longer than {_LONGEST_URL} characters")
    parts = urlsplit(url)
    if parts.scheme not in DEFAULT_PORTS:
        raise MediaError("unavailable_media", f"redirected to {shown(url)}, which is not HTTP")
    host, _, port = parts.netloc.rpartition(":") if re.search(r":[0-9]*$", parts.netloc) else (parts.netloc, "", "")
    if not _HOST.fullmatch(host) or "\\" in url or any(ord(c) <= 32 or ord(c) == 127 for c in url):
        raise MediaError(
            "unavailable_media", f"{shown(url)} is no plain URL: it has a user name, a space or a backslash"
        )
    number = int(port[:6] or DEFAULT_PORTS[parts.scheme])
    if not 0 < number < 1 << 16:
        raise MediaError("unavailable_media", f"{shown(url)} has the port {port[:6]}: ports are 1 to 65535")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Place(parts.scheme, host, number, "".join(c if c.isascii() else quote(c) for c in target))


def _addresses(host: str) -> tuple[str, ...]:
    """Ask for the addresses of a host."""
    try:
        found = socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)
    except (OSError, UnicodeError) as e:
        raise MediaError("unavailable_media", f"the host {host[:200]!r} isn't known: {brief(e)}") from e
    return tuple(dict.fromkeys(str(one[4][0]) for one in found))


def _known_addresses(host: str) -> tuple[str, ...]:
    """Return the addresses of a host that need no look-up: it is an address, or was looked up before."""
    asked, addresses = _known.get(host, (-_HOST_SECONDS, ()))
    if time.monotonic() - asked < _HOST_SECONDS:
        return addresses
    try:
        return (str(ipaddress.ip_address(host)),)
    except ValueError:
        return ()


def _checked_addresses(host: str, url: str, deadline: Deadline, *, private_network: bool) -> Sequence[str]:
    addresses = _known_addresses(host)
    if not addresses:
        addresses = deadline.run(lambda: _addresses(host))
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[host] = (time.monotonic(), addresses)
    private = [] if private_network else [address for address in addresses if not is_public(address)]
    if private or not addresses:
        raise MediaError(
            "unavailable_media",
            f"{shown(url)} leads to {private[0] if private else host[:200]}, which is not public. If it may be read: "
            "prompt(..., files=FileAccess(private_network=True))",
        )
    return addresses
