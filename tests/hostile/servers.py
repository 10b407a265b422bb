"""A server on the loopback that does to its client what servers should not. The path says what.

Each function of ``BEHAVIOURS`` gets the connection after the request was read. Slow ones send a byte from time to time,
endless ones as fast as they can, until the client goes or the server is closed.
"""

from __future__ import annotations

import contextlib
import datetime
import gzip
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

_PAUSE = 0.05
_OK = b"HTTP/1.1 200 OK\r\n"
GOOD = b"bytes"


class HostileServer:
    """Listens on a free port of the loopback. Close it at the end.

    Args:
        certificate: a file with a key and a certificate, for HTTPS.
        tunnels: speak TLS only after ``CONNECT``, as a proxy that leads to itself.

    Attributes:
        port: its port.
        asked: the targets that were asked for, as the client wrote them.
        heads: the heads of all requests.
        raw: what the path ``raw`` answers.
    """

    def __init__(self, certificate: Path | None = None, *, tunnels: bool = False) -> None:
        self._tunnels = tunnels
        self._tls: ssl.SSLContext | None = None
        if certificate is not None:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(certificate)
        self.raw = b""
        self.asked: list[str] = []
        self.heads: list[str] = []
        self._closed = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}/{path}"

    def close(self) -> None:
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket, *, inside: bool = False) -> None:
        secure = self._tls is not None and (inside or not self._tunnels)
        with contextlib.suppress(OSError), self._secured(connection) if secure else connection as connection:
            head = b""
            while b"\r\n\r\n" not in head:
                if not (part := connection.recv(65536)):
                    return
                head += part
            method, target, _ = head.decode("latin-1").split(" ", 2)
            self.asked.append(target)
            self.heads.append(head.decode("latin-1"))
            if method == "CONNECT" and self._tunnels:
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                return self._answer(connection, inside=True)
            parts = urlsplit(f"//{target}" if method == "CONNECT" else target)
            name = (parts.hostname or "") if method == "CONNECT" else parts.path.strip("/")
            if name == "raw":
                return connection.sendall(self.raw)
            options = {key: values[0] for key, values in parse_qs(parts.query).items()}
            for data in BEHAVIOURS[name](options, self._closed):
                connection.sendall(data)

    def _secured(self, connection: socket.socket) -> socket.socket:
        assert self._tls is not None
        return self._tls.wrap_socket(connection, server_side=True)


def _slowly(data: bytes, closed: threading.Event) -> Iterator[bytes]:
    for number in data:
        if closed.wait(_PAUSE):
            return
        yield bytes([number])


def _forever(data: bytes, closed: threading.Event) -> Iterator[bytes]:
    while not closed.is_set():
        yield data


_Options = Mapping[str, str]


def _good(options: _Options, closed: threading.Event) -> Iterator[bytes]:
    yield _OK + b"Content-Length: 5\r\n\r\n" + GOOD


def _no_headers(options: _Options, closed: threading.Event) -> Iterator[bytes]:
    yield _OK + b"no header\r\n: x\r\nContent-Type: multipart/x\r\nContent-Length: 5\r\n\r\n" + GOOD


def _silent(options: _Options, closed: threading.Event) -> Iterator[bytes]:
    closed.wait()
    yield b""


def _slow_header(options: _Options, closed: threading.Event) -> Iterator[bytes]:
    yield from _slowly(_OK + b"X: " + b"x" * 60000, closed)


def _slow_body(options: _Options, closed: threading.Event) -> Iterator[bytes]:
    yield _OK + b"Content-Length: 50000\r\n\r\n"
    yield from _slowly(b"x" * 50000, closed)


def _slow_unknown_length(options: _Options, closed: threading.Event) -> Iterator[bytes]:
    yield _OK + b"\r\n"
    yield from _slowly(b"x" * 50000, closed)


def _slow_chunks(options: _Options, closed: threading.Event) -> Iterator[bytes]:
    yield _OK + b"Transfer-Encoding: chunked\r\n\r\n"
    yield from _slowly(b"1\r\nx\r\n" * 10000, closed)


def _slow_extension(options: _Options, closed: threading.Event) -> Iterator[bytes]:
    yield _OK + b"Transfer-Encoding: chunked\r\n\r\n1;"
    yield from _slowly(b"e" * 50000, closed)


def _slow_trailer(options: _Options, closed: threading.Event) -> Iterator[bytes]:
    yield _OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"
    yield from _slowly(b"t: t\r\n" * 10000, closed)


def _endless_header(options: _Options, closed: threading.Event) -> Iterator[bytes]:
    yield _OK
    yield from _forever(b"X: x\r\n" * 1000, closed)


def _long_header(options: _Options, closed: threading.Event) -> Iterator[bytes]:
    yield _OK + b"X: "
    yield from _forever(b"x" * 10000, closed)


def _endless_body(options: _Options, closed: threading.Event) -> Iterator[bytes]:
    yield _OK + b"\r\n"
    yield from _forever(b"x" * 65536, closed)


def _endless_trailer(options: _Options, closed: threading.Event) -> Iterator[bytes]:
    yield _OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"
    yield from _forever(b"t: t\r\n" * 1000, closed)


def _continue_forever(options: _Options, closed: threading.Event) -> Iterator[bytes]:
    yield from _forever(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000, closed)


def _says_too_much(options: _Options, closed: threading.Event) -> Iterator[bytes]:
    yield _OK + b"Content-Length: 5000000\r\n\r\n" + GOOD


def _says_too_little(options: _Options, closed: threading.Event) -> Iterator[bytes]:
    yield _OK + b"Content-Length: 3\r\n\r\n" + GOOD


def _says_two_lengths(options: _Options, closed: threading.Event) -> Iterator[bytes]:
    yield _OK + b"Content-Length: 3\r\nContent-Length: 5\r\n\r\n" + GOOD


def _says_odd_length(options: _Options, closed: threading.Event) -> Iterator[bytes]:
    yield _OK + f"Content-Length: {options['length']}\r\n\r\n".encode() + GOOD


def _old(options: _Options, closed: threading.Event) -> Iterator[bytes]:
    yield b"no header, as in HTTP/0.9"


def _redirect(options: _Options, closed: threading.Event) -> Iterator[bytes]:
    closed.wait(float(options.get("after", 0)))
    yield f"HTTP/1.1 302 Found\r\nLocation: {options['to']}\r\nContent-Length: 0\r\n\r\n".encode()


def _round(options: _Options, closed: threading.Event) -> Iterator[bytes]:
    closed.wait(float(options.get("after", 0)))
    yield f"HTTP/1.1 302 Found\r\nLocation: /round?after={options.get('after', 0)}\r\n\r\n".encode()


def _busy(options: _Options, closed: threading.Event) -> Iterator[bytes]:
    wait = f"Retry-After: {options['wait']}\r\n" if "wait" in options else ""
    yield f"HTTP/1.1 {options.get('status', 503)} Busy\r\n{wait}Content-Length: 0\r\n\r\n".encode()


def _busy_endless(options: _Options, closed: threading.Event) -> Iterator[bytes]:
    yield b"HTTP/1.1 503 Busy\r\n\r\n"
    yield from _forever(b"x" * 65536, closed)


def _bomb(options: _Options, closed: threading.Event) -> Iterator[bytes]:
    one = gzip.compress(bytes(64 << 20))
    yield _OK + b"Content-Encoding: gzip\r\n\r\n"
    yield from _forever(one, closed)


def _empty_bomb(options: _Options, closed: threading.Event) -> Iterator[bytes]:
    yield _OK + b"Content-Encoding: gzip\r\n\r\n"
    yield from _forever(gzip.compress(b"") * 3000, closed)


def _zipped(options: _Options, closed: threading.Event) -> Iterator[bytes]:
    data = gzip.compress(GOOD)
    yield _OK + f"Content-Encoding: gzip\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


def _encoded(options: _Options, closed: threading.Event) -> Iterator[bytes]:
    yield _OK + f"Content-Encoding: {options['as']}\r\nContent-Length: 5\r\n\r\n".encode() + GOOD


BEHAVIOURS: Mapping[str, Callable[[_Options, threading.Event], Iterable[bytes]]] = {
    name.strip("_").replace("_", "-"): function
    for name, function in list(globals().items())
    if callable(function) and getattr(function, "__module__", None) == __name__ and name.startswith("_")
    if name not in ("_slowly", "_forever")
}
SLOW = (
    *("silent", "slow-header", "slow-body", "slow-unknown-length", "slow-chunks", "slow-extension", "slow-trailer"),
    *("endless-trailer", "continue-forever", "round?after=0.2", "empty-bomb"),
)
"""Paths whose answers never end. A client has to stop by itself."""


@contextlib.contextmanager
def hostile_server(certificate: Path | None = None, *, tunnels: bool = False) -> Iterator[HostileServer]:
    """Run a server inside the ``with`` block."""
    server = HostileServer(certificate, tunnels=tunnels)
    try:
        yield server
    finally:
        server.close()


def self_signed(name: str, path: Path) -> Path:
    """Write a new key, and a certificate for a host of that name, into a file. Return its path."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number(), now - day, now + day)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(private + certificate.public_bytes(pem))
    return path
