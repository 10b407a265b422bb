"""Files that a table names are read from where the caller allows, and from nowhere else."""

from __future__ import annotations

import base64
import http.server as http_server
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path

import daft
import pytest

from daft_vllm import FileAccess
from daft_vllm.engine.requests.media import MediaError
from daft_vllm.errors import OptionError
from daft_vllm.udf.columns.network import http


def refusal(access: FileAccess, url: str | daft.File) -> str:
    with pytest.raises(MediaError) as caught:
        access.read(url)
    assert caught.value.error.code in ("unavailable_media", "invalid_media")
    return caught.value.error.message


class Handler(http_server.BaseHTTPRequestHandler):
    asked: list[str] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.path == "/away":
            self.send_response(302)
            self.send_header("Location", "http://127.0.0.1:1/secret")
            self.end_headers()
        elif self.path == "/round":
            self.send_response(302)
            self.send_header("Location", "/round")
            self.end_headers()
        elif self.path == "/ranges" and "Range" in self.headers:
            first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
            content = b"bytes"[first : last + 1]
            self.send_response(206 if content else 416)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        elif self.path == "/there":
            self.send_response(200)
            self.send_header("Content-Length", "5")
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(b"bytes")
        else:
            self.send_error(404)

    do_HEAD = do_GET

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    Handler.asked.clear()
    serving = http_server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{serving.server_port}"
    serving.shutdown()


def test_local_files_only_below_a_folder(tmp_path: Path) -> None:
    allowed, other = tmp_path / "in", tmp_path / "in-not"
    allowed.mkdir()
    other.mkdir()
    (allowed / "a").write_bytes(b"a")
    (other / "b").write_bytes(b"b")
    (allowed / "link").symlink_to(other / "b")
    access = FileAccess(folders=[str(allowed)])
    for way in (str(allowed / "a"), f"file://{allowed}/a", daft.File(str(allowed / "a")), f"{other}/../in/a"):
        assert access.read(way) == b"a"
    for way in (str(other / "b"), f"file://{other}/b", daft.File(str(other / "b")), str(allowed / "link")):
        assert "below no folder that may be read" in refusal(access, way)
    assert "below no folder" in refusal(access, f"{allowed}/../in-not/b")
    assert "below no folder" in refusal(FileAccess(), str(allowed / "a"))
    assert "No such file" in refusal(access, str(allowed / "missing"))
    for way in (f"file:{allowed}/a", f"file://localhost{allowed}/a", "~/a", "~root/a"):
        assert refusal(access, way)
    inside = daft.File(str(allowed / "a"), position=1, size=1)
    assert access.read(inside) == b""
    assert access.digest(inside) != access.digest(str(allowed / "a"))
    assert access.digest("x") != FileAccess().digest("x")
    (allowed / "long").write_bytes(b"0123456789")
    small = FileAccess(folders=[str(allowed)], max_bytes=3)
    assert small.read(daft.File(str(allowed / "long"), position=7, size=2)) == b"78"
    assert small.read(daft.File(str(allowed / "long"), position=7)) == b"789"
    assert "more than 3 bytes" in refusal(small, daft.File(str(allowed / "long"), position=2))
    assert pickle.loads(pickle.dumps(access)) == access


def test_no_private_network(server: str) -> None:
    port = server.rpartition(":")[2]
    for url in (
        f"{server}/there",
        f"http://localhost:{port}/there",
        f"http://[::1]:{port}/there",
        f"http://0:{port}/there",
        f"http://0x7f.1:{port}/there",
        "http://10.0.0.1/x",
        "http://169.254.169.254/latest/meta-data",
    ):
        assert "is not public" in refusal(FileAccess(), url)
    # What Python and Daft read in different ways.
    for url in (
        f"http://127.0.0.1:{port}\\@8.8.8.8:80/there",
        f"http://8.8.8.8:80@127.0.0.1:{port}/there",
        f"http:/127.0.0.1:{port}/there",
        f"http:127.0.0.1:{port}/there",
        f"http:\\\\127.0.0.1:{port}/there",
        f" http://127.0.0.1:{port}/there",
        f"HTTP://127.0.0.1:{port}/there",
        "http://8.8.8.8:abc/x",
        "http://[::1",
        "http://host/my file.pdf",
        "gopher://8.8.8.8/",
        "a\0b",
    ):
        refusal(FileAccess(), url)
        refusal(FileAccess(folders=["."]), url)
    assert Handler.asked == []
    assert FileAccess(private_network=True).read(f"{server}/there") == b"bytes"
    assert "answers 404" in refusal(FileAccess(private_network=True), f"{server}/missing")


def test_redirects_and_large_files_of_public_servers(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    port = int(server.rpartition(":")[2])
    monkeypatch.setattr(http, "_addresses", lambda host: ("127.0.0.1",) if host == "public" else (host,))
    monkeypatch.setattr(http, "is_public", lambda address: address == "127.0.0.1" and not redirected())

    def redirected() -> bool:
        return "/away" in Handler.asked

    access = FileAccess()
    assert access.read(f"http://public:{port}/there") == b"bytes"
    assert "more than 3 bytes" in refusal(FileAccess(max_bytes=3), f"http://public:{port}/there")
    for path in ("there", "ranges"):  # servers that ignore a range, and servers that don't
        url = f"http://public:{port}/{path}"
        assert FileAccess(max_bytes=3).read(daft.File(url, position=3, size=9)) == b"es"
        assert FileAccess(max_bytes=3).read(daft.File(url, position=2, size=2)) == b"te"
        assert FileAccess(max_bytes=3).read(daft.File(url, position=7, size=2)) == b""
    assert "answers 404" in refusal(access, f"http://public:{port}/missing")
    assert "redirects" in refusal(access, f"http://public:{port}/round")
    assert "leads to 127.0.0.1" in refusal(access, f"http://public:{port}/away")
    assert "can't be reached" in refusal(access, "http://public:1/x") or "not public" in refusal(
        access, "http://public:1"
    )


def test_other_ways(tmp_path: Path) -> None:
    assert FileAccess().read("data:image/png;base64," + base64.b64encode(b"x").decode()) == b"x"
    assert "base64" in refusal(FileAccess(), "data:text/plain,hello")
    assert "isn't base64" in refusal(FileAccess(), "data:;base64,???")
    (tmp_path / "big").write_bytes(b"x" * 11)
    assert "more than 10 bytes" in refusal(FileAccess(folders=tmp_path, max_bytes=10), str(tmp_path / "big"))
    assert "isn't known" in refusal(FileAccess(), "http://nowhere.invalid/x")
    with pytest.raises(OptionError, match="not there"):
        FileAccess(folders=["/no/such/folder"])
    with pytest.raises(OptionError, match="max_bytes"):
        FileAccess(max_bytes=0)
