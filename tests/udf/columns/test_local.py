"""Local files: only regular ones are read, nothing blocks, and nothing that moves meanwhile leads elsewhere."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import daft
import pytest

from daft_vllm import FileAccess
from daft_vllm.engine.requests.media import MediaError
from daft_vllm.udf.columns.local import read_local


def refusal(access: FileAccess, path: object) -> str:
    with pytest.raises(MediaError) as caught:
        access.read(path if isinstance(path, daft.File) else str(path))
    assert caught.value.error.code == "unavailable_media"
    return caught.value.error.message


def test_only_regular_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "fifo.png")
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "link.png").symlink_to("fifo.png")
    (tmp_path / "round.png").symlink_to("round.png")
    (tmp_path / "empty").touch()
    access = FileAccess(folders=[str(tmp_path)])
    for path in ("fifo.png", "link.png"):
        assert "is a FIFO, not a regular file" in refusal(access, tmp_path / path)
        assert "is a FIFO" in refusal(access, f"file://{tmp_path}/{path}")
    assert "is a folder" in refusal(access, tmp_path / "folder.png")
    assert "is a folder" in refusal(access, tmp_path)
    assert "can't be read" in refusal(access, tmp_path / "fifo.png" / "x")
    assert refusal(access, tmp_path / "round.png")
    with socket.socket(socket.AF_UNIX) as listening:
        monkeypatch.chdir(tmp_path)  # the path of a socket is short
        listening.bind("socket.png")
        assert "is a socket" in refusal(access, tmp_path / "socket.png")
    assert access.read(str(tmp_path / "empty")) == b""


def test_a_fifo_is_not_even_opened(tmp_path: Path) -> None:
    """Whoever waits to write into it goes on waiting."""
    os.mkfifo(tmp_path / "fifo")
    opened = threading.Event()

    def write() -> None:
        with open(tmp_path / "fifo", "wb"):
            opened.set()

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    refusal(FileAccess(folders=[str(tmp_path)]), tmp_path / "fifo")
    assert not opened.wait(0.2)
    os.close(os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK))  # lets the writer end
    writer.join()


@pytest.mark.parametrize("folder", ["/", "/dev", "/proc"])
def test_devices_and_the_kernels_files(folder: str) -> None:
    access = FileAccess(folders=[folder])
    if folder != "/proc":
        for device in ("/dev/zero", "/dev/null", "/dev/tty", "/dev/urandom"):
            assert "is a device" in refusal(access, device)
    if folder != "/dev":
        for path in ("/proc/self/environ", "/proc/cpuinfo", f"/proc/{os.getpid()}/maps", "/proc/self/task/../environ"):
            assert "is made by the kernel" in refusal(access, path)


@pytest.mark.parametrize("kind", ["file", "folder", "fifo"])
@pytest.mark.parametrize("step", ["open", "readlink", "fstat"])
def test_what_moves_between_the_look_and_the_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, step: str
) -> None:
    """The file that was looked at is read, whatever has its name meanwhile."""
    allowed, other = tmp_path / "in", tmp_path / "other"
    for folder in (allowed / "sub", other):
        folder.mkdir(parents=True)
    (allowed / "sub" / "a").write_bytes(b"a")
    (other / "a").write_bytes(b"secret")

    def swap() -> None:
        if kind == "folder":
            (allowed / "sub").rename(allowed / "old")
            (allowed / "sub").symlink_to(other)
            return
        (allowed / "sub" / "a").rename(allowed / "b")
        if kind == "file":
            (allowed / "sub" / "a").symlink_to(other / "a")
        else:
            os.mkfifo(allowed / "sub" / "a")

    do: Callable[..., Any] = getattr(os, step)

    def do_then_swap(*arguments: Any) -> Any:
        done = do(*arguments)
        if not os.path.lexists(allowed / "old") and not os.path.lexists(allowed / "b"):
            swap()
        return done

    access = FileAccess(folders=[str(allowed)])
    with monkeypatch.context() as patched:
        patched.setattr(os, step, do_then_swap)
        assert access.read(str(allowed / "sub" / "a")) == b"a"
    after = {"file": "below no folder", "folder": "below no folder", "fifo": "is a FIFO"}[kind]
    assert after in refusal(access, allowed / "sub" / "a")


def test_whether_a_file_elsewhere_is_there_is_not_told(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "there").write_bytes(b"a")
    (tmp_path / "in" / "link").symlink_to(tmp_path)
    access = FileAccess(folders=[str(tmp_path / "in")])
    for folder in (tmp_path, tmp_path / "in" / "link", tmp_path / "in" / ".."):
        there, missing = (refusal(access, folder / name) for name in ("there", "missing"))
        assert "below no folder" in there
        assert missing == there.replace("/there", "/missing")
    assert "No such file" in refusal(access, tmp_path / "in" / "missing")


def test_paths_that_take_long(tmp_path: Path) -> None:
    access = FileAccess(folders=[str(tmp_path)])
    for path in ("a/" * 500_000, "a/../" * 200_000, f"{tmp_path}/" + "é" * 4000, "\0" * 5000):
        assert len(refusal(access, path)) < 600
    assert "below no folder" in refusal(access, "a" * 300)


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    os.mkfifo(tmp_path / "fifo")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        assert read_local(str(tmp_path / "a"), [str(tmp_path)], 3, 8) == b"89"
        assert read_local(str(tmp_path / "a"), [str(tmp_path)], 3, 80) == b""
        with pytest.raises(MediaError):
            read_local(str(tmp_path / "fifo"), [str(tmp_path)], 3)
    assert len(os.listdir("/proc/self/fd")) == before
