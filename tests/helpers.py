"""Functions that several test modules need."""

from __future__ import annotations

import io
import threading
import time
import wave
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from daft_vllm.engine.requests.outcome import NOT_ASKED


def alive(pids: Iterable[int]) -> list[int]:
    """Return those of ``pids`` that still run. Zombies don't count."""
    found = []
    for pid in pids:
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
        except psutil.NoSuchProcess:
            pass
    return found


def wait_gone(pids: Iterable[int], seconds: float = 10.0) -> list[int]:
    """Wait until ``pids`` are gone and return those that are still there after ``seconds``."""
    pids = list(pids)
    deadline = time.monotonic() + seconds
    while alive(pids) and time.monotonic() < deadline:
        time.sleep(0.1)
    return alive(pids)


def vllm_processes() -> set[int]:
    """Return the ids of vLLM's core and worker processes on this machine."""
    found = set()
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and "VLLM::" in " ".join(process.cmdline()):
                found.add(process.pid)
        except psutil.Error:
            pass
    return found


def replace_file(path: Path, content: bytes) -> None:
    """Write a file in the place of another one, or of a link, and leave what the link leads to as it is."""
    path.unlink(missing_ok=True)
    path.write_bytes(content)


def code_of(row: Mapping[str, Any]) -> str | None:
    """Return the code of a row of ``details=True``: of its failure, or why it was not asked. None: it was answered."""
    if row["error"] is not None:
        return str(row["error"].split(":")[0])
    return str(row["finish_reason"]) if row["finish_reason"] in NOT_ASKED else None


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """Watch the memory of this process and its children. The list's only entry is the most bytes above the start."""
    process, peak, over = psutil.Process(), [0], threading.Event()

    def used() -> int:
        total = process.memory_info().rss
        for child in process.children(recursive=True):
            try:
                total += child.memory_info().rss
            except psutil.Error:
                continue
        return total

    def watch() -> None:
        while not over.wait(0.05):
            peak[0] = max(peak[0], used() - before)

    before = used()
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        over.set()
        watcher.join()


def sound(seconds: float, pitch: float) -> bytes:
    """Return a WAV file with a tone. ``pitch`` is in Hz."""
    file = io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setnchannels(1)
        written.setsampwidth(2)
        written.setframerate(16000)
        times = np.arange(int(16000 * seconds)) / 16000
        written.writeframes((np.sin(2 * np.pi * pitch * times) * 20000).astype("<i2").tobytes())
    return file.getvalue()
