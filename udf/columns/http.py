"""Fetches files from public HTTP servers. Each address is checked before it is connected to, also after a redirect."""

from __future__ import annotations

import functools
import ipaddress
import re
import socket
import time
import urllib.request
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urljoin, urlsplit

from daft_vllm.engine.requests.media import MediaError

TOTAL_SECONDS = 60.0
"""How long one file may take."""
_REDIRECTS = 5
_CONNECT_SECONDS, _READ_SECONDS = 10.0, 30.0
_RETRIES = 3
_HOST_SECONDS = 60
"""How long the addresses of a host are cached at most."""
_CHUNK = 1 << 20
_MOST_SKIPPED = 64 << 20
"""The most bytes that are read and thrown away to reach the middle of a file, where a server ignores ranges."""
_HOST = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")


class _Place(NamedTuple):
    scheme: str
    host: str
    port: int
    target: str


def has_proxy(url: str) -> bool:
    """Whether this machine reaches a URL through a proxy. The proxy then has to guard the network."""
    scheme, host = urlsplit(url).scheme.lower(), urlsplit(url).hostname or ""
    return scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(host)


def fetch_public(url: str, most: int, start: int = 0) -> bytes:
    """Return the content at a URL from the byte ``start`` on, at most ``most`` bytes of it.

    The connection goes to exactly the address that was found to be public. So neither a redirect nor a second answer
    of the name server can lead elsewhere.

    Raises:
        MediaError: the address isn't public or can't be reached, the server answers with an error or redirects too
            often, or the file takes too long.
    """
    until = time.monotonic() + TOTAL_SECONDS
    first = url
    for _ in range(_REDIRECTS + 1):
        place = _place(url)
        address = _public_address(place.host.strip("[]"), int(time.monotonic() // _HOST_SECONDS), first)
        response = _answer(place, address, {"Range": f"bytes={start}-{start + most - 1}"} if start else {})
        try:
            if response.status in (301, 302, 303, 307, 308) and "location" in response.headers:
                url = urljoin(url, response.headers["location"])
                continue
            if response.status == 416:  # ``start`` is beyond the end of the file
                return b""
            if response.status not in (200, 206):
                raise MediaError("unavailable_media", f"{first!r}: the server answers {response.status}")
            skip = start if response.status == 200 else 0  # servers may ignore a range
            if skip > _MOST_SKIPPED:
                raise MediaError(
                    "unavailable_media", f"{first!r}: the server can't send a part of a file, only all of it"
                )
            data = bytearray()
            while len(data) < most and (chunk := response.read(_CHUNK)):
                data += chunk[skip:]
                skip = max(0, skip - len(chunk))
                if time.monotonic() > until:
                    raise MediaError("unavailable_media", f"{first!r} took more than {TOTAL_SECONDS:g} seconds")
            return bytes(data[:most])
        finally:
            response.close()
    raise MediaError("unavailable_media", f"{first!r}: more than {_REDIRECTS} redirects")


def _place(url: str) -> _Place:
    """Split a URL into its parts. A URL that another parser could read differently is refused."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise MediaError("unavailable_media", f"redirected to {url[:200]!r}, which is not HTTP")
    host, _, port = parts.netloc.rpartition(":") if re.search(r":[0-9]*$", parts.netloc) else (parts.netloc, "", "")
    if not _HOST.fullmatch(host) or "\\" in url or any(ord(c) <= 32 or ord(c) == 127 for c in url):
        raise MediaError(
            "unavailable_media", f"{url[:200]!r} is no plain URL: it has a user name, a space or a backslash"
        )
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    ascii_target = "".join(c if c.isascii() else quote(c) for c in target)
    return _Place(parts.scheme, host, int(port or (443 if parts.scheme == "https" else 80)), ascii_target)


def _answer(place: _Place, address: str, headers: Mapping[str, str]) -> Any:
    import certifi
    import urllib3

    options: dict[str, Any] = {}
    name = place.host.strip("[]")
    if place.scheme == "https":
        options = {"server_hostname": name, "assert_hostname": name, "ca_certs": certifi.where()}
    pool_of = urllib3.HTTPSConnectionPool if place.scheme == "https" else urllib3.HTTPConnectionPool
    pool = pool_of(address, place.port, timeout=urllib3.Timeout(_CONNECT_SECONDS, _READ_SECONDS), **options)
    default = 443 if place.scheme == "https" else 80
    host = place.host if place.port == default else f"{place.host}:{place.port}"
    try:
        return pool.urlopen(
            "GET",
            place.target,
            headers={"Host": host, "User-Agent": "daft-vllm", **headers},
            redirect=False,
            preload_content=False,
            retries=urllib3.Retry(
                total=_RETRIES, backoff_factor=0.5, status_forcelist=(429, 500, 502, 503, 504), raise_on_status=False
            ),
        )
    except urllib3.exceptions.HTTPError as e:
        raise MediaError("unavailable_media", f"{place.host} can't be reached: {type(e).__name__}: {e}") from e


@functools.lru_cache(maxsize=4096)
def _addresses(host: str, minute: int) -> tuple[str, ...]:
    """Return the addresses of a host. ``minute`` is part of the cache's key, so that cached answers expire."""
    try:
        found = socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)
    except (OSError, UnicodeError) as e:
        raise MediaError("unavailable_media", f"the host {host!r} isn't known: {e}") from e
    return tuple(dict.fromkeys(str(one[4][0]) for one in found))


def is_public(address: str) -> bool:
    """Whether an IP address is public, that is, on the internet."""
    return ipaddress.ip_address(address.split("%")[0]).is_global


def _public_address(host: str, minute: int, url: str) -> str:
    addresses = _addresses(host, minute)
    private = [address for address in addresses if not is_public(address)]
    if private or not addresses:
        raise MediaError(
            "unavailable_media",
            f"{url!r} leads to {private[0] if private else host}, which is not public. If it may be read: "
            "prompt(..., files=FileAccess(private_network=True))",
        )
    return addresses[0]
