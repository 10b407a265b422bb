"""Asks one HTTP server once, with a deadline over everything. Imports urllib3."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Mapping
from http.client import HTTPResponse
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import certifi
import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection

from daft_vllm.engine.requests.media import MediaError
from daft_vllm.udf.columns.network.deadline import Deadline

CONNECT_SECONDS, READ_SECONDS = 10.0, 30.0
"""How long a connection may take, and how long a server may be silent, before the next attempt."""
DEFAULT_PORTS: Mapping[str, int] = {"http": 80, "https": 443}


class Place(NamedTuple):
    """The parts of a URL. ``host`` is as it is written, an IPv6 address in brackets."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def name(self) -> str:
        """The host without brackets."""
        return self.host.strip("[]")


class _Response(HTTPResponse):
    """Drops lines that are no headers. urllib3 would log them as a warning, with the whole URL."""

    def begin(self) -> None:
        super().begin()
        if not self.msg.is_multipart():
            self.msg.set_payload("")
        self.msg.defects.clear()


class _Connection(HTTPConnection):
    """A connection that the deadline ends."""

    response_class = _Response

    def __init__(self, *args: Any, deadline: Deadline, **options: Any) -> None:
        super().__init__(*args, **options)
        self._deadline = deadline

    def _new_conn(self) -> socket.socket:
        return self._deadline.watch(super()._new_conn())


class _TlsConnection(_Connection, HTTPSConnection):
    """The same with TLS."""


def proxy_of(place: Place) -> str | None:
    """Return the URL of the proxy through which this machine reaches a place. None: it reaches it directly."""
    proxy = urllib.request.getproxies().get(place.scheme)
    return None if not proxy or urllib.request.proxy_bypass(place.name) else proxy


def ask(place: Place, address: str, proxy: str | None, headers: Mapping[str, str], deadline: Deadline) -> Any:
    """Return a server's response, with its status and headers read, and its body not yet.

    Args:
        place: what is asked for.
        address: the address that is connected to. Not used with a proxy, which looks the host up itself.
        proxy: the URL of a proxy.
        headers: further headers.
        deadline: ends the connection.

    Raises:
        MediaError: the time is over, or the proxy is of an unknown kind.
        urllib3.exceptions.HTTPError: the server can't be reached, or doesn't speak HTTP.
    """
    pool = _pool(place, address, proxy)
    pool.ConnectionCls = _TlsConnection if isinstance(pool, urllib3.HTTPSConnectionPool) else _Connection
    pool.conn_kw["deadline"] = deadline
    host = place.host if place.port == DEFAULT_PORTS[place.scheme] else f"{place.host}:{place.port}"
    is_forwarded = proxy is not None and place.scheme == "http"  # to others the proxy makes a tunnel
    left = deadline.left
    return pool.urlopen(
        "GET",
        f"http://{host}{place.target}" if is_forwarded else place.target,
        headers={"Host": host, "User-Agent": "daft-vllm", **headers},
        redirect=False,
        assert_same_host=False,  # the pool of a proxy is asked for other hosts
        retries=False,
        preload_content=False,
        timeout=urllib3.Timeout(connect=min(CONNECT_SECONDS, left), read=min(READ_SECONDS, left)),
    )


def _pool(place: Place, address: str, proxy: str | None) -> urllib3.HTTPConnectionPool:
    certificates = certifi.where()
    if proxy is not None:
        manager = urllib3.ProxyManager(*_checked_proxy(proxy), cert_reqs="CERT_REQUIRED", ca_certs=certificates)
        return manager.connection_from_host(place.name, place.port, place.scheme)
    if place.scheme == "http":
        return urllib3.HTTPConnectionPool(address, place.port)
    return urllib3.HTTPSConnectionPool(address, place.port, server_hostname=place.name, ca_certs=certificates)


def _checked_proxy(proxy: str) -> tuple[str, int, None, Mapping[str, str] | None]:
    """Return the first arguments of ``ProxyManager``: the URL, the number of pools, headers, the proxy's headers."""
    parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
        raise MediaError(
            "unavailable_media",
            f"the proxy in the environment is of the kind {parts.scheme!r}: use one of HTTP, or list the host in "
            "no_proxy",
        )
    user, at, host = parts.netloc.rpartition("@")
    headers = urllib3.make_headers(proxy_basic_auth=unquote(user)) if at else None
    return f"{parts.scheme}://{host}", 1, None, headers
