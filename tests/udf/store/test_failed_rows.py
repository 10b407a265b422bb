"""Rows that failed are in the store, and are asked again; rows that have names; the commands on a store."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import daft
import pytest
from daft import col, lit
from pydantic import BaseModel, Field, field_validator
from typer.testing import CliRunner

from daft_vllm import prompt
from daft_vllm.cli import app
from daft_vllm.engine.store.index import Index
from daft_vllm.errors import OptionError
from tests.conftest import ENGINE_ARGS
from tests.udf.store import WORDS, answers


def failed(store: Path) -> dict[str, tuple[str, int, str | None]]:
    """The code, the attempts and the text of each row that failed, by its name."""
    rows = [row for batch in Index(store).records(failed=True) for row in batch.to_pylist()]
    return {row["row_key"]: (row["error_code"], row["attempt"], row["text"]) for row in rows}


SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 20}}, "required": ["a"]}


def test_rows_that_failed_are_recorded_and_asked_again_with_changed_options(
    engine: object, smollm2: str, tmp_path: Path, asked: list[int]
) -> None:
    """One row is cut off, two can't be asked, one of them for good: it is too long."""
    rows = [*WORDS[:3], "long " * 2000, None]
    common: dict[str, Any] = {"return_format": SCHEMA, "details": True, "row_key": col("id")}
    limits = {"max_tokens": col("limit"), "limits": [400, 400, 3, 400, 400]}
    first = limited(rows, tmp_path / "s", smollm2, **limits, **common)
    assert [row["error"] is None for row in first] == [True, True, False, False, True]
    dead = failed(tmp_path / "s")
    assert {name: (code, attempts) for name, (code, attempts, _) in dead.items()} == {
        "2": ("truncated", 1),
        "3": ("prompt_too_long", 1),
    }
    assert dead["2"][2] == first[2]["text"]
    assert asked == [4]

    again = limited(rows, tmp_path / "s", smollm2, store_retry={"max_tokens": 4}, **limits, **common)
    assert asked == [4, 2], "only the rows that failed"
    assert again[2]["text"] == first[2]["text"], "it failed again, and keeps what it had"
    assert {name: attempts for name, (_, attempts, _) in failed(tmp_path / "s").items()} == {"2": 2, "3": 2}

    repaired = limited(rows, tmp_path / "s", smollm2, store_retry={"max_tokens": 400}, **limits, **common)
    assert repaired[2]["value"] is not None
    assert list(failed(tmp_path / "s")) == ["3"]
    last = limited(rows, tmp_path / "s", smollm2, **limits, **common)
    assert [row["value"] for row in last] == [row["value"] for row in repaired]
    assert asked == [4, 2, 2, 1], "the row without an answer is asked each time"


def limited(rows: list[Any], store: Path, model: str, *, limits: list[int], **options: Any) -> list[Any]:
    """Do as ``answers``, with a limit for each row."""
    answer = prompt(
        col("q"), model=model, gpus=0, use_process=False, engine_args=ENGINE_ARGS, store=str(store), **options
    )
    df = daft.from_pydict({"id": list(range(len(rows))), "q": rows, "limit": limits})
    return list(df.select("id", answer.alias("a")).sort("id").to_pydict()["a"])


class Never(BaseModel):
    """What no model writes."""

    a: str = Field(max_length=20)

    @field_validator("a")
    @classmethod
    def _never(cls, value: str) -> str:
        raise ValueError("it is not right")


def test_answers_that_are_invalid_are_recorded_with_their_text(
    engine: object, smollm2: str, tmp_path: Path, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"return_format": Never, "max_tokens": 60, "details": True, "row_key": col("id")}
    first = answers(WORDS[:2], tmp_path / "s", smollm2, retries=1, **options)
    assert [row["error"].partition(":")[0] for row in first] == ["invalid_output"] * 2
    assert failed(tmp_path / "s") == {str(i): ("invalid_output", 2, first[i]["text"]) for i in range(2)}
    assert asked == [2, 2]
    again = answers(WORDS[:2], tmp_path / "s", smollm2, retries=1, **options)
    assert [row["text"] for row in again] == [row["text"] for row in first]
    assert asked == [2, 2], "it was asked again as often as it may be"
    answers(WORDS[:2], tmp_path / "s", smollm2, retries=2, **options)
    assert asked == [2, 2, 2]
    assert {attempts for _, attempts, _ in failed(tmp_path / "s").values()} == {3}

    class Always(BaseModel):
        """What no model writes."""

        a: str = Field(max_length=20)

    Always.__name__ = Always.__qualname__ = "Never"
    mended = answers(WORDS[:2], tmp_path / "s", smollm2, store_changed=True, **{**options, "return_format": Always})
    assert all(row["value"] for row in mended), "the code that reads answers was changed"
    assert asked == [2, 2, 2]
    assert failed(tmp_path / "s") == {}


def test_rows_that_can_not_be_asked_are_recorded_until_they_can(
    engine: object, smollm2: str, tmp_path: Path, asked: list[int]
) -> None:
    """A temperature below 0 can't be used."""
    store, common = tmp_path / "s", {"row_key": col("id"), "details": True}
    for number in (1, 2):
        limited(["a", "b"], store, smollm2, max_tokens=col("limit"), limits=[3, 2**40], **common)
        assert failed(store) == {"1": ("invalid_request", number, None)}
    limited(["a", "b"], store, smollm2, max_tokens=col("limit"), limits=[3, 3], **common)
    assert failed(store) == {}
    assert sum(asked) == 2


@pytest.mark.parametrize("processes", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_rows_with_names_have_their_own_answers(
    engine: object, smollm2: str, tmp_path: Path, asked: list[int], processes: bool
) -> None:
    """They ask the same, and the answers are drawn at random. Also with a process of its own for the engine."""
    rows, store = ["Write a word."] * 6, tmp_path / "s"
    common: dict[str, Any] = {"temperature": 1.5, "max_tokens": 8, "row_key": col("id")}
    if processes:
        common |= {"use_process": True}
    first = answers(rows, store, smollm2, **common)
    assert len(set(first)) > 3
    assert answers(rows, store, smollm2, **common) == first, "each row has its own again, not that of another"
    for start in (0, 3):  # as two engines would, that don't know of one another
        found = answers(rows[:3], store, smollm2, **{**common, "row_key": (col("id") + start)}, store_changed=True)
        assert found == first[start : start + 3]


def test_rows_with_the_same_name_or_none_are_rows_without_one(
    engine: object, smollm2: str, tmp_path: Path, asked: list[int]
) -> None:
    rows, store = ["Write a word."] * 6, tmp_path / "s"
    name = daft.functions.when(col("id") < 3, lit("same")).otherwise(lit(None).cast(daft.DataType.string()))
    common: dict[str, Any] = {"temperature": 1.5, "max_tokens": 8, "row_key": name}
    first = answers(rows, store, smollm2, **common)
    assert len(set(first)) > 3
    again = answers(rows, store, smollm2, **common)
    assert (sorted(again[:3]), sorted(again[3:])) == (sorted(first[:3]), sorted(first[3:]))
    assert asked == [6]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"row_key": col("id")}, 'row_key is about a store of answers: pass store="folder" too'),
        ({"store_retry": {"max_tokens": 5}}, "store_retry is about a store"),
        ({"row_key": "id", "store": "s"}, "row_key is a column, got 'id'"),
        ({"store": "s", "store_retry": {}}, "store_retry says what changes"),
        ({"store": "s", "store_retry": {"max_token": 5}}, "unknown option 'max_token'.*max_tokens"),
        ({"store": "s", "store_retry": {"max_tokens": -5}}, "max_tokens must be"),
        ({"store": "s", "store_retry": {"max_tokens": col("n")}}, "takes values only"),
        ({"store": "s", "store_retry": {"thinking_token_budget": 5}}, "needs thinking=True"),
    ],
)
def test_options_about_a_store_that_can_not_be_used(options: dict[str, Any], said: str, smollm2: str) -> None:
    with pytest.raises(OptionError, match=said):
        prompt(col("q"), model=smollm2, **options)


@pytest.mark.other_engine
def test_the_command_goes_on_and_counts_what_was_stored(engine: object, smollm2: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("text\n" + "".join(f"number {i}\n" for i in range(12)))
    printed = []
    for output in ("a.jsonl", "b.jsonl"):
        arguments = ["run", "--input", str(tmp_path / "t.csv"), "--prompt", "Say {text}", "--max-tokens", "4"]
        arguments += ["--output", str(tmp_path / output), "--store", str(tmp_path / "s"), "--model", smollm2]
        arguments += ["--gpus", "0", "--engine-args", json.dumps(ENGINE_ARGS)]
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, done.output
        printed.append(done.output)
    assert "in the store" not in printed[0]
    assert re.search(r"rows whose answer was in the store\W+12", printed[1])
    first, second = (sorted((tmp_path / name).read_text().splitlines()) for name in ("a.jsonl", "b.jsonl"))
    assert first == second


@pytest.mark.other_engine
def test_the_command_repairs_rows_that_failed(
    engine: object, smollm2: str, tmp_path: Path, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.csv").write_text("name,text\n" + "".join(f"n{i},number {i}\n" for i in range(6)))
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))

    def command(*arguments: str) -> str:
        done = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})
        assert done.exit_code == 0, done.output
        return done.output

    run = ["run", "--input", "t.csv", "--prompt", "Say {text}", "--output", "a.jsonl", "--schema", "schema.json"]
    run += ["--store", "s", "--key", "name", "--max-tokens", "4", "--model", smollm2, "--gpus", "0"]
    run += ["--engine-args", json.dumps(ENGINE_ARGS)]
    monkeypatch.chdir(tmp_path)
    command(*run)
    assert "truncated" in command("show", "s", "--failed")
    assert asked == [6]
    monkeypatch.chdir(tmp_path.parent)
    command("retry", str(tmp_path / "s"), "--max-tokens", "60")
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [row["error"] for row in rows] == [None] * 6
    assert asked == [6, 6]
    shown = json.loads(command("show", str(tmp_path / "s"), "--json"))
    assert (shown["counters"]["failed"], shown["counters"]["attempts"]) == ({}, 12)
    assert {row["key"] for row in shown["rows"]} == {f"n{i}" for i in range(6)}
    assert all(row["seconds"] > 0 and row["prompt"].startswith("Say number") for row in shown["rows"])
    monkeypatch.chdir(tmp_path)
    command(*run, "--overwrite")
    assert [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()] == rows
    command("retry", "s", "--temperature", "0.7")
    assert asked == [6, 6], "nothing failed: no row is asked"
    monkeypatch.setenv("COLUMNS", "200")
    for wrong, said in (("nam", "is not a column. Did you mean 'name'"), ("name", "pass --store FOLDER too")):
        without = [one for one in run if one not in ("--store", "s", "--key", "name")]
        done = CliRunner().invoke(app, [*without, "--overwrite", "--no-store", "--key", wrong])
        assert said in " ".join(done.output.split())
