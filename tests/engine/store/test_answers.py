"""The store of answers: nothing that was written is lost, whatever happens to the last of it."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from daft_vllm.engine.requests.outcome import Outcome
from daft_vllm.engine.requests.toolbox import ToolAnswer, ToolCall
from daft_vllm.engine.setup.config import EngineConfig
from daft_vllm.engine.store import segments
from daft_vllm.engine.store.answers import AnswerStore
from daft_vllm.engine.store.codec import Record
from daft_vllm.engine.store.identity import engine_identity
from daft_vllm.engine.store.index import ANY_ROW, FIRST_ROW
from daft_vllm.engine.store.manifest import open_folder
from daft_vllm.errors import StoreError


def key(number: int) -> bytes:
    return hashlib.blake2b(str(number).encode(), digest_size=16).digest()


def answer(number: int) -> Outcome:
    return Outcome(text=f"answer {number}", finish_reason="stop", prompt_tokens=number, completion_tokens=3)


def record(number: int, outcome: Outcome, row: int | None = None, **more: Any) -> Record:
    """Return a record. Without ``row``, of a row that any other may share the answer with."""
    return Record(key(number), ANY_ROW if row is None else row, more.pop("attempt", 1), outcome, **more)


def outcomes(store: AnswerStore, numbers: Sequence[int], *, again: bool = True) -> list[Outcome | None]:
    known = store.find([key(number) for number in numbers], [again] * len(numbers))
    return [one and one.outcome for one in known]


def written(folder: Path, numbers: range) -> None:
    store = AnswerStore(folder)
    for number in numbers:
        store.append(record(number, answer(number)))
    store.close()


def found(folder: Path, numbers: range) -> list[Outcome | None]:
    store = AnswerStore(folder)
    try:
        return outcomes(store, numbers)
    finally:
        store.close()


def test_all_of_an_outcome_comes_back(tmp_path: Path) -> None:
    whole = Outcome(
        text="näher\n\x00 \U0001f600",
        finish_reason="length",
        prompt_tokens=7,
        cached_tokens=5,
        completion_tokens=2,
        reasoning="hm",
        tool_answer=ToolAnswer("text", (ToolCall("f", '{"a": 1}'),)),
        stop_reason=13,
    )
    failed = Outcome.failed("truncated", "it was cut off", prompt_tokens=3)._replace(text="cut", stop_reason="END")
    store = AnswerStore(tmp_path)
    store.append(record(1, whole))
    store.append(record(2, failed))
    store.flush()
    assert len(store) == 0, "an open store knows what was there when it was opened"
    store.close()
    store = AnswerStore(tmp_path)
    assert len(store) == 2
    assert outcomes(store, [2, 3, 1]) == [failed, None, whole]
    store.close()


def test_sampled_answers_are_given_once_each(tmp_path: Path) -> None:
    store = AnswerStore(tmp_path)
    for number in (1, 2):
        store.append(record(0, answer(number), FIRST_ROW + number))
    store.close()
    store = AnswerStore(tmp_path)
    assert outcomes(store, [0] * 3, again=False) == [answer(1), answer(2), None]
    assert outcomes(store, [0] * 2) == [answer(1), answer(1)]
    store.close()


def test_a_file_that_is_cut_anywhere_loses_the_last_write_only(tmp_path: Path) -> None:
    folder = tmp_path / "whole"
    folder.mkdir()
    writer = AnswerStore(folder)
    for start in range(0, 300, 100):
        for number in range(start, start + 100):
            writer.append(record(number, answer(number)))
        writer.flush()
    writer.close()
    (path,) = segments.segments_of(folder)
    whole = path.read_bytes()
    ends = [frame.offset + frame.length for frame, _ in segments.frames_of(path)]
    assert len(ends) == 3
    cut = tmp_path / "cut"
    cut.mkdir()
    for length in range(0, len(whole), 97):
        (cut / path.name).write_bytes(whole[:length])
        store = AnswerStore(cut)
        assert len(store) == 100 * sum(end <= length for end in ends)
        store.close()


def test_damage_is_found_by_checksum(tmp_path: Path) -> None:
    written(tmp_path, range(50))
    (path,) = segments.segments_of(tmp_path)
    data = bytearray(path.read_bytes())
    for place in range(len(segments.MAGIC), len(data), 211):
        damaged = bytearray(data)
        damaged[place] ^= 0x10
        path.write_bytes(damaged)
        store = AnswerStore(tmp_path)
        assert len(store) == 0
        store.close()


def test_a_file_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / f"x{segments.SUFFIX}").write_bytes(b"daft-vllm answers, version 9\n")
    with pytest.raises(StoreError, match="was not written by this version"):
        AnswerStore(tmp_path)


def test_many_threads_and_processes_write_at_once(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from tests.engine.store.test_answers import written\n"
        "written(Path(sys.argv[1]), range(int(sys.argv[2]), int(sys.argv[2]) + 500))"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(n)]) for n in range(2000, 3500, 500)]
    store = AnswerStore(tmp_path)

    def write(start: int) -> None:
        for number in range(start, start + 500):
            store.append(record(number, answer(number)))
        store.flush()

    threads = [threading.Thread(target=write, args=(start,)) for start in range(0, 2000, 500)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.close()
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert found(tmp_path, range(3500)) == [answer(number) for number in range(3500)]


def test_what_was_flushed_survives_a_kill(tmp_path: Path) -> None:
    code = (
        "import sys, os; from pathlib import Path\n"
        "from tests.engine.store.test_answers import *\n"
        "store = AnswerStore(Path(sys.argv[1]))\n"
        "for number in range(1_000_000):\n"
        "    store.append(record(number, answer(number)))\n"
        "    if number % 100 == 99:\n"
        "        store.flush(); print(number, flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    last = -1
    for line in process.stdout:
        last = int(line)
        if last > 700:
            process.kill()
            break
    last = max([last, *map(int, process.stdout.read().split())])
    process.wait()
    assert found(tmp_path, range(last + 1)) == [answer(number) for number in range(last + 1)]


def test_a_full_disk_is_an_error_that_says_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = AnswerStore(tmp_path)
    store.append(record(0, answer(0)))
    store.flush()

    def full(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(segments.os, "write", full)
    store.append(record(1, answer(1)))
    with pytest.raises(StoreError, match=r"No space left on device.* The 1 answers that this process has written are"):
        store.flush()
    monkeypatch.undo()
    store.close()
    assert found(tmp_path, range(2)) == [answer(0), None]


def test_many_answers_to_the_same_question(tmp_path: Path) -> None:
    store = AnswerStore(tmp_path)
    for number in range(20_000):
        store.append(record(0, answer(number), FIRST_ROW + 2 * 20_000 - number))
    store.close()
    store = AnswerStore(tmp_path)
    started = time.monotonic()
    assert outcomes(store, [0] * 20_001, again=False) == [*(answer(n) for n in range(20_000)), None]
    assert time.monotonic() - started < 20, "not a search through all of them for each"
    store.close()


def test_the_manifest(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    open_folder(folder, {"max_tokens": "1"})
    open_folder(folder, {"max_tokens": "2"})  # there are no answers yet
    written(folder, range(1))
    with pytest.raises(StoreError, match=r"max_tokens was '2', and is '1'; seed is '3', and was not given"):
        open_folder(folder, {"max_tokens": "1", "seed": "3"})
    open_folder(folder, {"max_tokens": "1"}, changed=True)
    for content in ("", "[]", '{"format": 1'):
        (folder / "job.json").write_text(content)
        with pytest.raises(StoreError, match=r"is damaged .*: delete it if this is the store of the same job"):
            open_folder(folder, {"max_tokens": "1"})
    (folder / "job.json").unlink()
    open_folder(folder, {"max_tokens": "1"})
    (folder / "job.json").write_text('{"format": 7, "asked": {}}')
    with pytest.raises(StoreError, match="use the version that wrote it"):
        open_folder(folder, {"max_tokens": "1"})


def test_other_weights_are_another_model(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(bytes(40 << 20))
    (tmp_path / "config.json").write_text("{}")
    before = engine_identity(EngineConfig(str(tmp_path)))
    assert engine_identity(EngineConfig(str(tmp_path), {"max_num_seqs": 4, "enforce_eager": True})) == before
    assert engine_identity(EngineConfig(str(tmp_path), {"dtype": "float16"})) != before
    with (tmp_path / "model.safetensors").open("r+b") as file:  # one layer in the middle
        file.seek(15 << 20)
        file.write(b"x" * (4 << 20))
    assert engine_identity(EngineConfig(str(tmp_path)))["model"] != before["model"]


@pytest.mark.slow
def test_a_million_answers(tmp_path: Path) -> None:
    """Within 30 seconds and 500 MiB."""
    for start in range(0, 1_000_000, 250_000):
        written(tmp_path, range(start, start + 250_000))
    before = psutil.Process().memory_info().rss
    started = time.monotonic()
    store = AnswerStore(tmp_path)
    opened = time.monotonic() - started
    for start in range(0, 1_000_000, 10_000):
        numbers = range(start, start + 10_000)
        assert outcomes(store, numbers) == [answer(n) for n in numbers]
    seconds = time.monotonic() - started
    memory = (psutil.Process().memory_info().rss - before) >> 20
    store.close()
    print(f"opened in {opened:.1f} s, all found in {seconds:.1f} s, {memory} MiB")
    assert seconds < 30 * 3, "on a slow machine too"
    assert memory < 500
