"""Several records of one row: which of them holds. And files of format 1."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from daft_vllm.engine.requests.content import Conversation, Media, Message
from daft_vllm.engine.requests.outcome import ErrorValue, Outcome
from daft_vllm.engine.requests.request import Request, last_text
from daft_vllm.engine.store.answers import AnswerStore
from daft_vllm.engine.store.codec import Record
from daft_vllm.engine.store.index import FIRST_ROW, NOT_ASKED, Found, Index
from daft_vllm.engine.store.keys import request_key
from daft_vllm.engine.store.manifest import Command, asked_of, open_folder, read_command, write_command
from daft_vllm.errors import StoreError
from tests.engine.store.test_answers import answer, key, record

FORMAT_1 = Path(__file__).parent / "format_1"
TRUNCATED = Outcome.failed("truncated", "cut off")._replace(text="cut")
TOO_LONG = Outcome.failed("prompt_too_long", "it is too long")


def found(folder: Path, records: list[Record], number: int = 0, again: int = 1) -> list[Found | None]:
    store = AnswerStore(folder)
    for one in records:
        store.append(one)
    store.close()
    index = Index(folder)
    return index.find([key(number)] * again, [again == 1] * again)


def dead(folder: Path) -> list[dict[str, Any]]:
    return [row for batch in Index(folder).records(failed=True) for row in batch.to_pylist()]


def test_the_last_attempt_holds_and_attempts_are_counted(tmp_path: Path) -> None:
    (first,) = found(tmp_path, [record(0, TRUNCATED), record(1, answer(1))])
    assert first == Found(TRUNCATED, 0, 1, "truncated", True)
    assert [row["key"] for row in dead(tmp_path)] == [key(0)]
    (second,) = found(tmp_path, [record(0, answer(5), attempt=2)])
    assert second == Found(answer(5), 0, 2, None, True)
    assert dead(tmp_path) == [], "a row that is answered later is no dead letter any more"
    assert len(Index(tmp_path)) == 2


def test_a_failure_without_an_answer_never_takes_the_place_of_an_answer(tmp_path: Path) -> None:
    (only,) = found(tmp_path, [record(0, answer(5)), record(0, TOO_LONG, attempt=2)])
    assert only is not None
    assert (only.outcome, only.attempts, only.is_answer) == (answer(5), 2, True)
    (other,) = found(tmp_path, [record(1, TOO_LONG), record(1, TOO_LONG, attempt=2)], number=1)
    assert other == Found(TOO_LONG, 0, 2, "prompt_too_long", False)


def test_an_answer_that_was_found_invalid_is_read_anew(tmp_path: Path) -> None:
    wrong = ErrorValue("invalid_output", "it has no number")
    (one,) = found(tmp_path, [record(0, answer(5)), record(0, answer(5)._replace(error=wrong), verdict=True)])
    assert one == Found(answer(5), 0, 1, "invalid_output", True)
    (row,) = dead(tmp_path)
    assert (row["text"], row["error_message"]) == ("answer 5", "it has no number")
    (kept,) = found(tmp_path, [record(1, answer(5)._replace(error=wrong))], number=1)  # the engine found it
    assert kept is not None
    assert kept.outcome.error == wrong


def test_rows_that_ask_the_same_keep_their_own_answers(tmp_path: Path) -> None:
    rows = [FIRST_ROW + 70, FIRST_ROW + 8, FIRST_ROW + 9]
    records = [record(0, outcome, row) for outcome, row in zip([TOO_LONG, TRUNCATED, answer(1)], rows, strict=True)]
    known = found(tmp_path, [*records, record(0, answer(2), rows[1], attempt=2)], again=4)
    assert [one and one.row for one in known] == [rows[1], rows[2], rows[0], None], "answers go first"
    assert [one and one.outcome for one in known][:2] == [answer(2), answer(1)]


def test_a_row_that_could_not_be_asked_and_later_was_is_no_dead_letter(tmp_path: Path) -> None:
    found(tmp_path, [record(0, TOO_LONG, NOT_ASKED)])
    assert Index(tmp_path).has_unasked
    assert len(dead(tmp_path)) == 1
    found(tmp_path, [record(0, Outcome(), NOT_ASKED)])
    index = Index(tmp_path)
    assert (index.has_unasked, dead(tmp_path), list(index.records())) == (False, [], [])


def test_all_of_a_record_comes_back(tmp_path: Path) -> None:
    whole = answer(1)._replace(seconds=1.5, queue_seconds=0.25)
    found(tmp_path, [record(0, whole, row_key="é-1", prompt="half of a pair \ud83d", attempt=3)])
    (batch,) = Index(tmp_path).records()
    (row,) = batch.to_pylist()
    assert (row["row_key"], row["attempt"], row["seconds"], row["queue_seconds"]) == ("é-1", 3, 1.5, 0.25)
    assert row["prompt"].startswith("half of a pair ")
    (known,) = Index(tmp_path).find([key(0)], [True])
    assert known is not None
    assert known.outcome.seconds == 0, "who takes it from the store waits for nothing"


def test_a_store_of_format_1_is_read_and_goes_on(tmp_path: Path) -> None:
    """Its file was written by the last version that wrote this format."""
    folder = tmp_path / "s"
    shutil.copytree(FORMAT_1, folder)
    asked = {"model": "smollm2-135m (revision main)", "prompt": "col(q)"}
    assert asked_of(folder) == asked
    with pytest.raises(StoreError, match="prompt was"):
        open_folder(folder, {**asked, "prompt": "col(p)"})
    assert json.loads((folder / "job.json").read_text())["format"] == 1
    open_folder(folder, asked)
    assert json.loads((folder / "job.json").read_text()) == {"format": 2, "asked": asked}
    index = Index(folder)
    assert len(index) == 5
    assert [one and one.outcome for one in index.find([key(2)] * 3, [False] * 3)] == [answer(2), answer(22), None]
    (tool,) = index.find([key(4)], [True])
    assert tool is not None
    assert (tool.outcome.reasoning, tool.outcome.stop_reason, tool.attempts) == ("hm", 13, 1)
    assert [(row["key"], row["attempt"], row["prompt"]) for row in dead(folder)] == [(key(3), 1, None)]
    (cut,) = index.find([key(3)], [True])
    assert cut is not None
    second = found(folder, [Record(key(3), cut.row, 2, answer(3))], number=3)
    assert second == [Found(answer(3), cut.row, 2, None, True)]
    rows = [one and one.row for one in Index(folder).find([key(2)] * 2, [False] * 2)]
    assert len(set(rows)) == 2, "rows of format 1 have a number each, the same whenever the file is read"


def test_what_is_kept_of_the_prompt() -> None:
    picture = Media("image", lambda: None, b"x")
    assert last_text(Request("a" * 300), 200) == "a" * 200
    assert last_text(Request((picture, "what?")), 200) == "[image] what?"
    talk = Conversation((Message("user", ("one",)), Message("user", ("two",)), Message("assistant", ("three",))))
    assert last_text(Request(talk), 200) == "two"
    assert last_text(Request(Conversation(())), 200) == ""


def test_a_row_key_is_part_of_the_key() -> None:
    plain, a, b = (request_key(Request("one", row_key=name), b"", b"engine") for name in (None, "a", "b"))
    assert len({plain, a, b}) == 3
    assert plain.hex() == "cb1d9f349dce40b9411e52ac320ce9a1", "stores that are there keep their keys"


def test_the_command_of_a_job(tmp_path: Path) -> None:
    assert read_command(tmp_path) is None
    with pytest.raises(StoreError, match="is no store of answers"):
        asked_of(tmp_path)
    open_folder(tmp_path, {"prompt": "a"})
    write_command(tmp_path, Command("/data", ["--input", "t.csv"]))
    open_folder(tmp_path, {"prompt": "a"})
    assert read_command(tmp_path) == Command("/data", ["--input", "t.csv"])
    assert (tmp_path / "command.json").stat().st_mode & 0o077 == 0, "its arguments may be private"
    for content in ("", "[]", "{}", '{"folder": "/", "arguments": 1}'):
        (tmp_path / "command.json").write_text(content)
        with pytest.raises(StoreError, match="run the job again, which writes it anew"):
            read_command(tmp_path)


def test_an_open_store_has_no_texts_in_memory(tmp_path: Path) -> None:
    store = AnswerStore(tmp_path)
    for number in range(60):
        store.append(record(number, Outcome(text=str(number) * (1 << 20), finish_reason="stop")))
        store.flush()
    store.close()
    tracemalloc.start()
    try:
        index = Index(tmp_path)
        assert tracemalloc.get_traced_memory()[1] >> 20 < 20, "of 110 MiB, at no time"
    finally:
        tracemalloc.stop()
    assert len(index) == 60
