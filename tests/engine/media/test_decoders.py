"""Decoder processes: the same results as vLLM's readers, and no file takes more time or memory than its budget."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from PIL import Image

from daft_vllm import FileAccess
from daft_vllm.engine.media import processes
from daft_vllm.engine.media.decode import (
    _collected_bytes,
    _collected_image,
    audio_from_bytes,
    image_from_bytes,
    pdf_image,
    pdf_pages,
    pdf_text,
)
from daft_vllm.engine.media.exchange import PART_BYTES, shared_memory
from daft_vllm.engine.media.limits import Budget
from daft_vllm.engine.media.processes import POOL, DecoderPool
from daft_vllm.engine.requests.media import MediaError
from tests.helpers import wait_gone
from tests.hostile import files

GOOD = files.png(40, 30)


def first_page(data: bytes, budget: Budget) -> Any:
    return pdf_image(data, 0, budget)


def text(data: bytes, budget: Budget) -> str:
    return pdf_text(data, 1 << 18, budget)


Read = Callable[[bytes, Budget], Any]
# Each: how to make the file, how it is read, and what its error says.
HOSTILE: dict[str, tuple[Callable[[], bytes], Read, str]] = {
    "16 bits": (lambda: files.png(11_000, 10_000, bits=16), image_from_bytes, "more than 256 MiB of memory|pixels"),
    "floats": (lambda: files.tiff(5000, 5000, 32, 3), image_from_bytes, "more than 256 MiB of memory"),
    "integers": (lambda: files.tiff(9000, 9000, 32, 1), image_from_bytes, "pixels, more than"),
    "one bit": (lambda: files.png(16_000, 16_000, bits=1), image_from_bytes, "pixels"),
    "a comment": (files.text_bomb_png, image_from_bytes, "too large"),
    "many scans": (lambda: files.many_scans_jpeg(2000, 3000), image_from_bytes, "more than 1 seconds"),
    "nested forms": (files.nested_forms_pdf, first_page, "more than (1 seconds|256 MiB)"),
    "nested forms, text": (files.nested_forms_pdf, text, "more than (1 seconds|256 MiB)"),
    "endless pages": (files.endless_pages_pdf, pdf_pages, "Failed to load"),
    "much text": (lambda: files.long_text_pdf(15_000), text, "more than 262144 bytes"),
    "a long sound": (lambda: files.silence(3600), audio_from_bytes, "3600 seconds"),
    "many channels": (lambda: files.silence(590, 8, 16_000), audio_from_bytes, "8 channel"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_an_error_within_its_budget(name: str) -> None:
    make, read, message = HOSTILE[name]
    data = make()
    image_from_bytes(GOOD)
    before = psutil.Process().memory_info().rss
    started = time.monotonic()
    with pytest.raises(MediaError, match=message) as caught:
        read(data, Budget(1.0 if "seconds" in message else 60.0, 256 << 20))
    assert time.monotonic() - started < 60, "even where the machine is slow"
    assert len(str(caught.value.error)) < 400
    assert psutil.Process().memory_info().rss - before < 256 << 20
    assert image_from_bytes(GOOD).media.size == (40, 30)


def test_hostile_files_hold_up_no_others() -> None:
    """All processes are busy with files that never end. The good ones that come after them wait for their budget."""
    bad = files.nested_forms_pdf()
    with ThreadPoolExecutor(12) as pool:
        lost = [pool.submit(first_page, bad, Budget(0.5, 64 << 20)) for _ in range(6)]
        found = [pool.submit(image_from_bytes, GOOD, Budget(5.0)) for _ in range(50)]
        assert all(future.result().media.size == (40, 30) for future in found)
        assert all(isinstance(future.exception(), MediaError) for future in lost)


def test_the_files_of_a_cell_share_its_budget() -> None:
    budget = Budget(0.4)
    with pytest.raises(MediaError, match=r"more than 0\.4 seconds"):
        first_page(files.nested_forms_pdf(), budget)
    with pytest.raises(MediaError, match=r"0\.4 seconds: raise files=FileAccess\(max_seconds"):
        image_from_bytes(GOOD, budget)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA", "P", "L", "1", "CMYK"])
def test_images_are_those_of_vllm(mode: str) -> None:
    """With the same keys in vLLM's cache."""
    from vllm.multimodal.hasher import MultiModalHasher
    from vllm.multimodal.media import ImageMediaIO

    pixels = np.random.default_rng(3).integers(0, 256, (37, 53, 4), np.uint8)
    stream = io.BytesIO()
    exif = Image.Exif()
    exif[274] = 6
    Image.fromarray(pixels).convert(mode).save(stream, "TIFF" if mode == "CMYK" else "PNG", exif=exif)
    data = stream.getvalue()
    theirs, ours = ImageMediaIO().load_bytes(data), image_from_bytes(data)
    assert ours.media.size == theirs.media.size == (37, 53)
    assert np.array_equal(np.asarray(ours.media), np.asarray(theirs.media))
    assert MultiModalHasher.hash_kwargs("blake3", image=ours) == MultiModalHasher.hash_kwargs("blake3", image=theirs)


def test_a_large_image_comes_in_strips() -> None:
    pixels = np.random.default_rng(3).integers(0, 256, (40, 30, 3), np.uint8).repeat(120, 0).repeat(120, 1)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG", compress_level=1)
    assert np.array_equal(np.asarray(image_from_bytes(stream.getvalue()).media), pixels)


def test_a_large_file_comes_in_parts() -> None:
    """Larger than the memory that the processes share, both ways."""
    import soundfile

    samples = np.random.default_rng(3).integers(-9000, 9000, 19_000_000, np.int16)
    stream = io.BytesIO()
    soundfile.write(stream, samples, 96_000, format="WAV")
    assert len(stream.getvalue()) > PART_BYTES
    found, rate = POOL.decode(
        "sound", stream.getvalue(), Budget(), {"max_seconds": 1e6, "max_bytes": 1 << 30}, _collected_bytes
    )
    assert rate["rate"] == 96_000
    assert np.array_equal(np.frombuffer(found, np.float32) * 32768, samples)


@pytest.mark.parametrize(
    ("size", "sent"),
    [((2, 2), [8]), ((2, 2), [16, 8]), ((2, 2), [15]), ((9_000, 9_000), [36_000]), ((0, 5), [0]), ((-2, -2), [16])],
)
def test_what_a_decoder_says_is_not_taken_on_trust(size: tuple[int, int], sent: list[int]) -> None:
    """It may have been taken over by the file that it reads."""
    with pytest.raises(ValueError, match=r"decoder|image data|greater|wrong size|bounding"):
        _collected_image(1 << 20, {"size": size}, iter([memoryview(bytes(n)) for n in sent]))


def test_shared_memory_can_not_be_made_smaller() -> None:
    memory = shared_memory()
    with pytest.raises(PermissionError):
        os.ftruncate(memory, 0)
    os.close(memory)


def test_files_that_take_long_hold_up_no_others_soon() -> None:
    """As many as begin at once take long. The next one comes in a second, not after them."""
    pool, collected = DecoderPool(), partial(_collected_image, 1 << 22)
    pool.decode("image", GOOD, Budget(), {"max_pixels": 10_000}, collected)
    bad = files.nested_forms_pdf()
    with ThreadPoolExecutor(8) as threads:
        many = min(8, processes._AT_ONCE, processes._PROCESSES - 1)
        lost = [
            threads.submit(pool.decode, "pdf image", bad, Budget(15.0), {"page": 0}, collected) for _ in range(many)
        ]
        time.sleep(0.1)
        started = time.monotonic()
        assert pool.decode("image", GOOD, Budget(), {"max_pixels": 10_000}, collected)[0].size == (40, 30)
        assert time.monotonic() - started < 10
        assert not any(future.done() for future in lost)
        pool.close()
        assert all(isinstance(future.exception(), MediaError) for future in lost)


@pytest.mark.parametrize("channels", [1, 2])
def test_sounds_are_those_of_vllm(channels: int) -> None:
    import soundfile
    from vllm.multimodal.media import AudioMediaIO

    stream = io.BytesIO()
    samples = np.random.default_rng(3).normal(0, 0.1, (4000, channels))
    soundfile.write(stream, samples, 8000, format="WAV")
    (theirs, rate), ours = AudioMediaIO().load_bytes(stream.getvalue()), audio_from_bytes(stream.getvalue())
    assert ours[1] == rate == 8000
    assert ours[0].dtype == theirs.dtype
    np.testing.assert_allclose(ours[0], theirs, atol=1e-7)


def test_a_process_that_dies_is_replaced() -> None:
    pool = DecoderPool(1)
    ask = ("pdf pages", files.page_pdf(files.stream(b"")), Budget(), {}, lambda answer, parts: bytes(next(parts)))
    assert pool.decode(*ask) == b""
    [decoder] = pool._all
    decoder.process.kill()  # while it is idle
    decoder.process.wait()
    assert pool.decode(*ask) == b""

    def kill_at_work() -> None:
        time.sleep(0.3)
        os.kill(next(iter(pool._all)).process.pid, signal.SIGSEGV)

    threading.Thread(target=kill_at_work).start()
    with pytest.raises(MediaError, match=r"has died \(SIGSEGV\)"):
        pool.decode("pdf image", files.nested_forms_pdf(), Budget(20.0), {"page": 0}, ask[-1])
    assert pool.decode(*ask) == b""
    pids = [decoder.process.pid for decoder in pool._all]
    pool.close()
    assert wait_gone(pids, 0) == []


def test_decoders_see_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """They read files of strangers, so they get few variables. They write no files."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    decoder = processes._Decoder()
    decoder._wait_until_ready()
    process = psutil.Process(decoder.process.pid)
    assert not {"HF_TOKEN", "AWS_SECRET_ACCESS_KEY"} & set(process.environ())
    assert process.rlimit(psutil.RLIMIT_FSIZE) == (0, 0)
    decoder.kill()


def test_decoders_end_with_their_owner() -> None:
    """Also with one that is killed while a file is decoded: there is no thread that would hold it up."""
    code = (
        "import os, signal, threading, time, psutil\n"
        "from tests.hostile import files\n"
        "from daft_vllm.engine.media.decode import pdf_image, pdf_pages\n"
        "from daft_vllm.engine.media.limits import Budget\n"
        "pdf_pages(files.nested_forms_pdf(), Budget())\n"
        "threading.Thread(target=pdf_image, args=(files.nested_forms_pdf(), 0, Budget(1.0)), daemon=True).start()\n"
        "time.sleep(0.5)\n"
        "print(*[p.pid for p in psutil.Process().children()], flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    pids = [int(pid) for pid in done.stdout.split()]
    assert pids, done.stderr
    assert wait_gone(pids, 15.0) == []


def test_a_budget_may_be_longer_than_any_wait(tmp_path: Path) -> None:
    (tmp_path / "good.png").write_bytes(GOOD)
    data = FileAccess(folders=[tmp_path], max_seconds=1e15).read(str(tmp_path / "good.png"))
    assert image_from_bytes(data, Budget(1e15)).media.size == (40, 30)


def test_a_fork_has_decoders_of_its_own() -> None:
    image_from_bytes(GOOD)
    pids = {decoder.process.pid for decoder in POOL._all}
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, b"shared" if POOL._all or POOL._idle else b"own")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 10) == b"own"
    assert pids <= {decoder.process.pid for decoder in POOL._all}
    assert image_from_bytes(GOOD).media.size == (40, 30)


def test_the_pool_has_no_more_processes_than_it_says() -> None:
    with ThreadPoolExecutor(30) as pool:
        list(pool.map(image_from_bytes, [GOOD] * 200))
    assert len(POOL._all) <= POOL._processes
