"""A store under a URL: every batch is an object, and readers take a copy."""

from __future__ import annotations

import shutil
import tempfile
import threading
from pathlib import Path

import pytest

from daft_vllm.engine import Outcome
from daft_vllm.engine.store.answers import AnswerStore
from daft_vllm.engine.store.codec import Record
from daft_vllm.engine.store.manifest import asked_of
from daft_vllm.engine.store.remote import local_copy, open_remote
from daft_vllm.errors import StoreError


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return f"file://{tmp_path}/bucket/store"


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def write(url: str, numbers: range) -> None:
    store = AnswerStore(url)
    for number in numbers:
        store.append(Record(key(number), 0, 1, Outcome(f"answer {number}", "stop", 3, 0, 2)))
    store.flush()
    store.close()


def test_answers_of_several_writers_come_back(url: str, tmp_path: Path) -> None:
    open_remote(url, {"model": "m"})
    threads = [threading.Thread(target=write, args=(url, range(start, start + 300))) for start in range(0, 1200, 300)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    open_remote(url, {"model": "m"})
    store = AnswerStore(url)
    assert len(store) == 1200
    found = store.find([key(number) for number in range(1201)], [True] * 1201)
    assert [one and one.outcome.text for one in found] == [*(f"answer {i}" for i in range(1200)), None]
    store.close()
    assert list((tmp_path / "temporary").iterdir()) == [], "no copy is left"


def test_what_was_flushed_is_there_and_half_an_object_is_left_out(url: str, tmp_path: Path) -> None:
    open_remote(url, {"model": "m"})
    write(url, range(5))
    folder = tmp_path / "bucket" / "store"
    (written,) = folder.glob("*.answers")
    whole = written.read_bytes()
    for cut in range(0, len(whole), 7):  # an object store has no such objects, a network disk may
        written.write_bytes(whole[:cut])
        store = AnswerStore(url)
        assert len(store) == 0
        store.close()


def test_another_job_is_refused_by_the_url(url: str, tmp_path: Path) -> None:
    open_remote(url, {"model": "m", "prompt": "a"})
    open_remote(url, {"model": "m", "prompt": "b"})
    write(url, range(1))
    with pytest.raises(StoreError, match=rf"the store {url} has the answers of a job .* prompt was 'b', and is 'c'"):
        open_remote(url, {"model": "m", "prompt": "c"})
    open_remote(url, {"model": "m", "prompt": "c"}, changed=True)
    open_remote(url, {"model": "m", "prompt": "c"})
    (tmp_path / "bucket" / "other").mkdir()
    (tmp_path / "bucket" / "other" / "photo.png").touch()
    with pytest.raises(StoreError, match="other holds other files"):
        open_remote(f"file://{tmp_path}/bucket/other", {"model": "m"})


def test_places_that_cannot_be_reached(url: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="nowhere://datasets/x can't be reached"):
        open_remote("nowhere://datasets/x", {})
    (tmp_path / "bucket").write_text("a file")
    with pytest.raises(StoreError, match=f"the store {url} can't be"):
        open_remote(url, {"model": "m"})


def test_an_answer_that_cannot_be_written_ends_the_query(url: str, tmp_path: Path) -> None:
    open_remote(url, {"model": "m"})
    store = AnswerStore(url)
    shutil.rmtree(tmp_path / "bucket")
    (tmp_path / "bucket").write_text("a file")
    store.append(Record(key(1), 0, 1, Outcome("x")))
    with pytest.raises(StoreError, match="answers can't be written"):
        store.flush()
    store.close()


def test_a_folder_needs_no_copy(tmp_path: Path) -> None:
    with local_copy(str(tmp_path)) as folder:
        assert folder == tmp_path


def test_an_error_about_the_copy_names_the_url(url: str) -> None:
    with pytest.raises(StoreError) as raised, local_copy(url) as folder:
        asked_of(folder)
    assert str(raised.value) == f"'{url}' is no store of answers: there is no job.json in it."
