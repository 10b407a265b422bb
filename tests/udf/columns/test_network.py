"""Hostile servers: whatever they do, a file is there or refused within its time and its size."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daft_vllm import FileAccess
from daft_vllm.engine.requests.media import MediaError
from daft_vllm.errors import OptionError
from daft_vllm.udf.columns.network import http
from daft_vllm.udf.columns.network.addresses import is_public
from daft_vllm.udf.columns.network.deadline import Deadline, watchdog
from daft_vllm.wording import brief, shown
from tests.hostile.servers import GOOD, SLOW, HostileServer, hostile_server, self_signed

SHORT = FileAccess(private_network=True, max_seconds=0.5, max_bytes=1 << 20)
LONG = FileAccess(private_network=True, max_seconds=20, max_bytes=1 << 20)


@pytest.fixture(scope="module")
def server() -> Iterator[HostileServer]:
    with hostile_server() as running:
        yield running


@pytest.fixture(autouse=True)
def no_proxy_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def quick_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_BACKOFF", 0.01)


def outcome(access: FileAccess, url: str) -> bytes | str:
    """Return a file's content, or the message of its error."""
    try:
        return access.read(url)
    except MediaError as e:
        return e.error.message if e.error.code == "unavailable_media" else repr(e)


def test_one_deadline_over_everything(server: HostileServer) -> None:
    urls = [*map(server.url, SLOW), f"https://127.0.0.1:{server.port}/silent"]  # the last in the handshake of TLS
    with ThreadPoolExecutor(len(urls) + 50) as pool:
        good = pool.map(LONG.read, [server.url("good")] * 50)
        slow = list(pool.map(lambda url: outcome(SHORT, url), urls))
        assert list(good) == [GOOD] * 50
    for url, message in zip(urls, slow, strict=True):
        assert "took more than 0.5 seconds: raise files=FileAccess(max_seconds=...)" in message, url
    assert not watchdog.watched


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("endless-header", "more than 100 headers"),
        ("long-header", "header line"),
        ("endless-body", "more than 1048576 bytes"),
        ("bomb", "more than 1048576 bytes"),
        ("says-too-much", "IncompleteRead"),
        ("says-two-lengths", "Content-Length"),
        ("encoded?as=br", "encoding 'br'"),
        ("encoded?as=gzip,+gzip,+gzip", "encoding 'gzip, gzip, gzip'"),
        ("encoded?as=gzip", "DecodeError"),
        ("old", "BadStatusLine"),
        ("round", "more than 5 redirects"),
        ("redirect?to=file:///etc/passwd", "not HTTP"),
        ("redirect?to=gopher://127.0.0.1/", "not HTTP"),
        ("redirect?to=s3://bucket/key", "not HTTP"),
        ("redirect?to=http://user@127.0.0.1/", "no plain URL"),
        ("redirect?to=http://[", "can't be read"),
        ("redirect?to=http://127.0.0.1:99999/", "ports are 1 to 65535"),
    ],
)
def test_what_servers_should_not_do(server: HostileServer, path: str, message: str) -> None:
    assert message in str(outcome(LONG, server.url(path)))


def test_a_length_that_says_too_little_or_nothing(server: HostileServer) -> None:
    assert outcome(LONG, server.url("says-too-little")) == GOOD[:3]
    for length in ("-1", "x", "9" * 5000, "5.0"):
        outcome(LONG, server.url(f"says-odd-length?length={length}"))
    assert outcome(LONG, server.url("zipped")) == GOOD


def test_busy_servers(server: HostileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(Deadline, "sleep", lambda self, seconds: slept.append(seconds))
    for wait in ("100000", "21", "Fri, 31 Dec 2100 23:59:59 GMT"):
        for status in (429, 503):
            message = outcome(LONG, server.url(f"busy?status={status}&wait={wait.replace(' ', '+')}"))
            assert f"busy ({status}) and asks to wait for" in str(message)
    assert slept == []
    for wait in ("-5", "soon", "9" * 5000, "Fri, 31 Dec 0000000 23:59:59", "2"):
        assert "the server answers 503" in str(outcome(LONG, server.url(f"busy?wait={wait.replace(' ', '+')}")))
    assert max(slept) == 2.0
    assert len(slept) == 5 * 3
    slept.clear()
    assert "the server answers 503" in str(outcome(LONG, server.url("busy-endless")))


def test_certificates_are_checked_against_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection goes to an address, and the certificate is still for the name in the URL."""
    monkeypatch.setattr(http, "_addresses", lambda host: ("127.0.0.1",))
    certificate = self_signed("tls.test", tmp_path / "tls.pem")
    with hostile_server(certificate) as secure:
        right, wrong = (f"https://{name}:{secure.port}/good" for name in ("tls.test", "other.test"))
        assert "CERTIFICATE_VERIFY_FAILED" in str(outcome(LONG, right))
        monkeypatch.setattr("certifi.where", lambda: str(certificate))
        assert LONG.read(right) == GOOD
        assert "CERTIFICATE_VERIFY_FAILED" in str(outcome(LONG, wrong))
        for path in ("slow-header", "slow-body", "slow-chunks"):
            assert "took more than 0.5 seconds" in str(outcome(SHORT, f"https://tls.test:{secure.port}/{path}"))


def test_the_next_address_of_a_host_is_tried(server: HostileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_addresses", lambda host: ("127.0.0.2", "127.0.0.1"))
    assert LONG.read(f"http://two.invalid:{server.port}/good") == GOOD


def test_a_connection_that_nobody_accepts() -> None:
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        address = full.getsockname()
        for _ in range(8):  # fill the queue: further attempts get no answer
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(address)
        message = str(outcome(SHORT, f"http://127.0.0.1:{address[1]}/x"))
    assert "took more than 0.5 seconds" in message


HEADS = st.sampled_from(
    [
        *(b"HTTP/1.1 200 OK", b"HTTP/1.0 200", b"HTTP/1.1 206 x", b"HTTP/1.1 302 x", b"HTTP/9.9 200", b"a: b\r c"),
        *(b"Content-Length: 3", b"Content-Length: 1e9", b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip"),
        *(b"Content-Encoding: gzip", b"Content-Encoding: deflate", b"Location: //[", b"Location: \xff"),
        *(b"Content-Range: bytes 5-1/0", b"5;x", b"ffffffffffffffff", b"-1", b"0", b"", b"\x1f\x8b\x08"),
    ]
)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(HEADS | st.binary(max_size=12), max_size=12))
def test_any_answer_is_a_file_or_an_error(server: HostileServer, lines: list[bytes]) -> None:
    server.raw = b"\r\n".join(lines)
    found = outcome(SHORT, server.url("raw"))
    assert isinstance(found, bytes) or not found.startswith("MediaError")


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(["", "http:", "http://", "https://[", "file:", "file:///", "data:", "s3", "//", "~"]), st.text())
def test_any_text_is_a_place_or_an_error(scheme: str, text: str) -> None:
    if scheme == "http://":
        text = f"@{text}"  # no host: nothing is looked up
    with pytest.raises(MediaError) as caught:
        FileAccess().read(f"{scheme}{text}" if scheme != "data:" else f"data:{text}!")
    assert caught.value.error.message.isprintable()
    assert len(caught.value.error.message) < 800


def test_limits_that_are_large(server: HostileServer) -> None:
    assert FileAccess(private_network=True, max_seconds=1e300).read(server.url("good")) == GOOD
    assert "longer than 65536 characters" in str(outcome(LONG, server.url("good?" + "x" * 10_000_000)))


def test_names_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    forever = threading.Event()
    monkeypatch.setattr(http, "_addresses", lambda host: forever.wait())
    assert "took more than 0.5 seconds" in str(outcome(SHORT, "http://slow-name.invalid/x"))
    forever.set()


def test_through_a_proxy(server: HostileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://me:secret@127.0.0.1:{server.port}")
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{server.port}")
    access, quick = FileAccess(), FileAccess(max_seconds=0.5)  # the proxy guards the network
    assert access.read("http://far.invalid/good?a=b") == GOOD
    assert server.asked[-1] == "http://far.invalid/good?a=b"
    assert "proxy-authorization: Basic bWU6c2VjcmV0" in server.heads[-1]
    assert "took more than" in str(outcome(quick, "http://far.invalid/slow-body"))
    for host in ("slow-header", "silent"):
        assert "took more than" in str(outcome(quick, f"https://{host}/x"))
        assert server.asked[-1] == f"{host}:443"
    monkeypatch.setenv("http_proxy", "socks5://me:secret@127.0.0.1:1")
    message = str(outcome(access, "http://far.invalid/good"))
    assert "'socks5'" in message
    assert "secret" not in message
    # Hosts without a proxy are guarded here, also after a redirect.
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.port}")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert "is not public" in str(outcome(access, server.url("good")))
    assert "leads to 127.0.0.1" in str(outcome(access, f"http://far.invalid/redirect?to={server.url('good')}"))


def test_tls_through_a_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = self_signed("far.invalid", tmp_path / "tls.pem")
    monkeypatch.setattr("certifi.where", lambda: str(certificate))
    with hostile_server(certificate, tunnels=True) as proxy:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.port}")
        assert FileAccess().read("https://far.invalid/good") == GOOD
        assert proxy.asked == ["far.invalid:443", "/good"]
        assert "CERTIFICATE_VERIFY_FAILED" in str(outcome(FileAccess(), "https://other.invalid/good"))
        for path in ("silent", "slow-body", "continue-forever"):
            assert "took more than 0.5 seconds" in str(outcome(SHORT, f"https://far.invalid/{path}"))


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), "5", None, True])
def test_max_seconds_is_checked(seconds: object) -> None:
    with pytest.raises(OptionError, match="max_seconds"):
        FileAccess(max_seconds=seconds)  # type: ignore[arg-type]


def test_public_addresses() -> None:
    public = ("8.8.8.8", "169.255.0.1", "2606:4700::1111", "::ffff:8.8.8.8", "2002:808:808::1", "64:ff9b::808:808")
    assert [one for one in public if not is_public(one)] == []


@pytest.mark.parametrize(
    "addresses",
    [
        # IPv4: this machine, private, link-local, shared, documentation, benchmarks, multicast, reserved.
        "0.0.0.0 127.0.0.1 10.0.0.1 172.16.0.1 192.168.0.1 169.254.169.254 100.64.0.1 192.0.2.1 198.51.100.1",
        "203.0.113.1 198.18.0.1 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255 192.0.0.1 192.88.99.1",
        # Metadata of clouds: Alibaba, Oracle, Azure, Equinix, IBM, AWS, Google.
        "100.100.100.200 192.0.0.192 168.63.129.16 192.80.8.124 161.26.0.10 166.8.0.1 fd00:ec2::254 fd20:ce::254",
        # IPv6: this machine, private, link-local, site-local, multicast, documentation, discard.
        ":: ::1 fc00::1 fd12::1 fe80::1 fe80::1%eth0 fec0::1 feff::1 ff02::1 ff0e::1 2001:db8::1 3fff::1 100::1",
        # IPv6 that stands for IPv4: mapped, compatible, translated, 6to4, NAT64 (two prefixes), Teredo, ISATAP.
        "::ffff:127.0.0.1 ::ffff:169.254.169.254 ::127.0.0.1 ::10.0.0.1 ::ffff:0:7f00:1 2002:7f00:1::",
        "64:ff9b::7f00:1 64:ff9b::a9fe:a9fe 64:ff9b::c000:c0 64:ff9b:1::808:808 2001:0:4136:e378:8000:63bf:3fff:fdd2",
        "2002:a9fe:a9fe::1 2606:4700::5efe:7f00:1 2606:4700::200:5efe:a00:1 2002:a83f:8110::1 ::ffff:168.63.129.16",
    ],
)
def test_addresses_that_are_not_public(addresses: str) -> None:
    assert [one for one in addresses.split() if is_public(one)] == []


def test_nothing_is_logged(server: HostileServer, caplog: pytest.LogCaptureFixture) -> None:
    for path in ("no-headers?sig=SECRET", "says-two-lengths?sig=SECRET", "old?sig=SECRET", "good?sig=SECRET"):
        outcome(LONG, server.url(path))
    assert [one for one in caplog.records if one.levelno > logging.DEBUG] == []


def test_messages_are_short_and_without_secrets(server: HostileServer) -> None:
    long = server.url("round") + "?after=0&X-Amz-Signature=SECRET&" + "x" * 5000
    for url in (
        long,
        f"http://me:SECRET@127.0.0.1:{server.port}/good",
        f"http://127.0.0.1:1/x?token=SECRET{'y' * 5000}",
        f"gopher://me:SECRET@host/{'z' * 5000}?SECRET",
        f"file://host/{'z' * 5000}?SECRET#SECRET",
        f"http://127.0.0.1:{server.port}/redirect?to=ftp://u:SECRET@h/",
        f"http://127.0.0.1:{server.port}/says-too-much?sig=SECRET",
    ):
        message = str(outcome(SHORT, url))
        assert "SECRET" not in message
        assert message.isprintable()
        assert len(message) < 800
    assert shown("data:image/png;base64,SECRET") == "'data:image/png;base64'"
    assert shown("a\nb?c") == r"'a\nb?c'"
    error = ValueError("GET s3://KEY:SECRET@bucket/x?sig=SECRET\nfailed " + "x" * 1000)
    assert brief(ValueError("\x1b[2J \u202e")) == r"ValueError: \x1b[2J \u202e"
    assert brief(error).startswith("ValueError: GET s3://bucket/x?... failed xxx")
    assert len(brief(error)) < 320
