"""``prompt()`` over real columns, with the real model, in this process (one load for the whole module)."""

from __future__ import annotations

import enum
import threading
import time
from concurrent.futures import Future
from typing import Any, Literal

import daft
import pytest
from daft import DataType, col
from pydantic import BaseModel

from daft_vllm import OfflineEngine, prompt
from daft_vllm.errors import DaftVLLMError, ModelError, OptionError, RowError, SchemaError
from daft_vllm.udf.worker.actor import PromptActor
from tests.conftest import ENGINE_ARGS
from tests.helpers import code_of

DETAILS = [
    "value",
    "text",
    "reasoning",
    "finish_reason",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "queue_seconds",
    "error",
]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Fact(BaseModel):
    kind: Literal["city", "country"]
    big: bool
    rank: int | None
    tags: list[Colour]


@pytest.fixture
def ask(engine: OfflineEngine, smollm2: str) -> Any:
    """``prompt`` with the session's engine."""

    def ask(column: str, return_format: Any = None, **options: Any) -> daft.Expression:
        options = {"max_tokens": 12, **options}
        return prompt(
            col(column), return_format, model=smollm2, engine_args=ENGINE_ARGS, gpus=0, use_process=False, **options
        )

    return ask


def test_text_rows_keep_order_and_identity(ask: Any) -> None:
    questions = [f"What is {i} plus {i}?" for i in range(40)]
    df = daft.from_pydict({"id": list(range(40)), "q": questions}).with_column("a", ask("q")).collect()
    rows = df.to_pydict()
    assert rows["id"] == list(range(40))
    assert rows["q"] == questions
    assert all(isinstance(answer, str) for answer in rows["a"])
    assert df.schema()["a"].dtype == DataType.string()


def test_null_empty_and_over_long_among_200(ask: Any) -> None:
    """The bad ones are null with a reason, the rest are answered, nothing is raised."""
    prompts: list[str | None] = [f"Name a fruit {i}." for i in range(200)]
    prompts[20], prompts[100], prompts[150] = None, "", "word " * 2000
    df = daft.from_pydict({"id": list(range(200)), "q": prompts})
    rows = df.with_column("a", ask("q", max_tokens=2, details=True)).to_pydict()
    assert rows["id"] == list(range(200))
    errors = {i: code_of(row) for i, row in enumerate(rows["a"]) if code_of(row)}
    assert errors == {20: "null_prompt", 150: "prompt_too_long"}
    assert sum(row["value"] is not None for row in rows["a"]) == 198
    assert [i for i, row in enumerate(rows["a"]) if row["value"] is None] == [20, 150]
    assert list(rows["a"][0]) == DETAILS
    assert rows["a"][0]["completion_tokens"] == 2
    assert rows["a"][0]["prompt_tokens"] > 0


def test_failed_rows_are_null_without_details(ask: Any, caplog: pytest.LogCaptureFixture) -> None:
    df = daft.from_pydict({"q": ["hello", None, "word " * 2000]}).with_column("a", ask("q"))
    answers = df.to_pydict()["a"]
    assert isinstance(answers[0], str)
    assert answers[1:] == [None, None]
    assert "1 of 3 rows have no value (prompt_too_long 1)" in caplog.text


def test_on_error_raise(ask: Any) -> None:
    good = daft.from_pydict({"q": ["hello", None]}).with_column("a", ask("q", on_error="raise"))
    assert good.to_pydict()["a"][1] is None
    bad = daft.from_pydict({"q": ["hello", "word " * 2000]}).with_column("a", ask("q", on_error="raise"))
    with pytest.raises(Exception, match="prompt_too_long") as caught:
        bad.collect()
    assert any(isinstance(e, RowError) for e in (caught.value, caught.value.__cause__))


def test_a_query_that_fails_gives_up_its_other_rows(engine: OfflineEngine, ask: Any) -> None:
    """Daft lets the other batches' coroutines run on, so the rows have to be taken out of the engine here."""
    before = engine.stats()
    prompts = ["word " * 2000, *(f"Story {i}" for i in range(400))]
    df = daft.from_pydict({"q": prompts})
    with pytest.raises(Exception, match="prompt_too_long"):
        df.with_column("a", ask("q", on_error="raise", max_tokens=200, ignore_eos=True, batch_size=1)).collect()
    deadline = time.monotonic() + 20
    while (engine.stats().pending or engine.stats().in_flight) and time.monotonic() < deadline:
        time.sleep(0.1)
    stats = engine.stats()
    assert stats.pending == stats.in_flight == 0
    assert stats.since(before).abandoned > 0
    stats.check()


def test_a_batch_that_is_tokenized_while_the_query_fails(
    engine: OfflineEngine, ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = threading.Event()
    submit, give_up = OfflineEngine.submit, PromptActor._give_up
    late: list[Future[Any]] = []

    def slow(self: OfflineEngine, requests: Any, **options: Any) -> Any:
        if len(requests[0].prompt) < 1000:
            assert failed.wait(60)
            late.append(submit(self, requests, **options))
            return late[-1]
        return submit(self, requests, **options)

    def told(self: PromptActor, error: DaftVLLMError) -> None:
        give_up(self, error)
        failed.set()

    monkeypatch.setattr(OfflineEngine, "submit", slow)
    monkeypatch.setattr(PromptActor, "_give_up", told)
    df = daft.from_pydict({"q": ["word " * 2000, *(f"Tale {i}" for i in range(4))]})
    with pytest.raises(Exception, match="prompt_too_long"):
        df.with_column("a", ask("q", on_error="raise", max_tokens=500, ignore_eos=True, batch_size=1)).collect()
    deadline = time.monotonic() + 60
    while (len(late) < 1 or not all(future.done() for future in late)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert late
    assert all(future.cancelled() for future in late)


def test_pydantic_becomes_a_struct(ask: Any) -> None:
    df = daft.from_pydict({"q": ["Paris", "France", "Rome", "Italy"]})
    df = df.with_column("a", ask("q", Fact, max_tokens=120, details=True)).collect()
    expected = DataType.struct(
        {
            "kind": DataType.string(),
            "big": DataType.bool(),
            "rank": DataType.int64(),
            "tags": DataType.list(DataType.string()),
        }
    )
    assert df.schema()["a"].dtype.fields["value"] == expected
    for row in df.to_pydict()["a"]:
        if row["error"] is None:
            Fact.model_validate(row["value"])
        else:
            assert row["error"].startswith("truncated")
            assert row["value"] is None
            assert row["text"]


@pytest.mark.parametrize("form", [["red", "blue"], Colour, Literal["red", "blue"]])
def test_choices(ask: Any, form: Any) -> None:
    df = daft.from_pydict({"q": [f"A colour, number {i}?" for i in range(10)]}).with_column("a", ask("q", form))
    assert set(df.to_pydict()["a"]) <= {"red", "blue"}


def test_json_schema_dict(ask: Any) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    df = daft.from_pydict({"q": ["Two plus two?"]}).with_column("a", ask("q", schema, max_tokens=40)).collect()
    assert df.schema()["a"].dtype == DataType.struct({"n": DataType.int64()})
    assert isinstance(df.to_pydict()["a"][0]["n"], int)


def test_empty_table_and_one_row(ask: Any) -> None:
    df = daft.from_pydict({"q": ["one"]}).with_column("a", ask("q"))
    assert len(df.to_pydict()["a"]) == 1
    none = daft.from_pydict({"id": [1], "q": ["one"]}).where(col("id") > 1).with_column("a", ask("q")).collect()
    assert none.to_pydict() == {"id": [], "q": [], "a": []}
    assert none.schema()["a"].dtype == DataType.string()


def test_text_as_it_is(ask: Any) -> None:
    df = daft.from_pydict({"q": ["The capital of France is"]})
    row = df.with_column("a", ask("q", apply_chat_template=False, details=True, max_tokens=4)).to_pydict()["a"][0]
    assert "Paris" in row["value"]
    assert row["prompt_tokens"] == 5


def test_several_batches_and_two_columns(ask: Any) -> None:
    df = daft.from_pydict({"id": list(range(30)), "q": [f"{i}" for i in range(30)]})
    df = df.with_column("a", ask("q", ["x", "y"], batch_size=7)).with_column("b", ask("a", ["z"], batch_size=11))
    rows = df.to_pydict()
    assert sorted(rows["id"]) == list(range(30))  # batches come back in the order in which they are done
    assert set(rows["a"]) <= {"x", "y"}
    assert set(rows["b"]) == {"z"}


def test_the_engine_stays_full_between_batches(engine: OfflineEngine, ask: Any) -> None:
    """Batches of 4 rows run side by side, and share a prefix across."""
    before = engine.stats()
    df = daft.from_pydict({"id": list(range(96)), "q": ["word " * 100 + str(i) for i in range(96)]})
    answers = df.with_column("a", ask("q", details=True, max_tokens=8, ignore_eos=True, batch_size=4)).to_pydict()
    added = engine.stats().since(before)
    assert sorted(answers["id"]) == list(range(96))
    assert added.done == 96
    assert added.mean_running > 12
    assert added.cached_tokens > 0.6 * added.prompt_tokens


def test_options_by_row(ask: Any) -> None:
    """Columns in place of values: null is the default, a bad value is the row's error."""
    limits = [1, 3, None, 0, 5]
    questions = ["Count."] * 5
    questions[2] += " on" * 950  # the default of max_tokens is more than the context has left
    df = daft.from_pydict({"id": list(range(5)), "q": questions, "n": limits, "t": [0.0, 0.0, 0.0, 0.0, -1.0]})
    asked = ask("q", max_tokens=col("n"), temperature=col("t"), ignore_eos=True, details=True, min_tokens=1)
    rows = df.with_column("a", asked).to_pydict()["a"]
    assert [row["completion_tokens"] for row in rows] == [1, 3, rows[2]["completion_tokens"], 0, 0]
    assert rows[2]["completion_tokens"] > 5
    assert rows[3]["error"].startswith("invalid_request: ")
    assert "max_tokens" in rows[3]["error"]
    assert "temperature" in rows[4]["error"]
    with pytest.raises(OptionError, match="Did you mean 'max_tokens'"):
        ask("q", max_token=col("n"))


def test_identical_rows_once(engine: OfflineEngine, ask: Any) -> None:
    df = daft.from_pydict({"q": ["Same."] * 20})
    for dedupe, expected in ((True, 19), (False, 0)):
        before = engine.stats()
        assert len(set(df.with_column("a", ask("q", dedupe=dedupe)).to_pydict()["a"])) == 1
        assert engine.stats().since(before).duplicates == expected


# What is refused before anything is loaded.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temprature": 1.0}, "Did you mean 'temperature'"),
        ({"batchsize": 3}, "Did you mean 'batch_size'"),
        ({"max_model_len": 3}, "engine_args"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"min_tokens": 9, "max_tokens": 3}, "min_tokens"),
        ({"n": 2}, "one answer"),
        ({"guided_json": {}}, "return_format"),
        ({"engine_args": {"max_modellen": 3}}, "Did you mean 'max_model_len'"),
        ({"engine_args": {"model": "x"}}, "may not hold 'model'"),
        ({"gpus": 2, "engine_args": {"tensor_parallel_size": 4}}, "gpus=4"),
        ({"gpus": 1.5}, "whole number"),
        ({"max_concurrency": 0}, "max_concurrency"),
        ({"use_process": "yes"}, "use_process"),
        ({"batch_size": 0}, "batch_size"),
        ({"on_error": "ignore"}, "on_error"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncation_side": "middle"}, "truncation_side"),
        ({"system_message": "x", "apply_chat_template": False}, "chat template"),
        ({"model": "smollm2-135n"}, "Did you mean 'smollm2-135m'"),
        ({"model": ""}, "model"),
        ({"stall_timeout": 0}, "stall_timeout"),
        ({"max_restarts": -1}, "max_restarts"),
    ],
)
def test_options_are_checked_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        prompt(col("q"), **{"gpus": 0, **options})


def test_wrong_model_folder(tmp_path: Any) -> None:
    with pytest.raises(ModelError, match="no model folder"):
        prompt(col("q"), model="./no/such/folder", gpus=0)
    with pytest.raises(ModelError, match=r"no config\.json"):
        prompt(col("q"), model=str(tmp_path), gpus=0)


@pytest.mark.parametrize("form", [[], ["a", ""], [1, 2], "text", 3, {"type": "strin"}])
def test_return_formats_that_are_not_understood(form: Any) -> None:
    with pytest.raises(SchemaError):
        prompt(col("q"), form, gpus=0)


def test_messages_is_a_column() -> None:
    with pytest.raises(OptionError, match="column"):
        prompt("question", gpus=0)  # type: ignore[arg-type]


def test_no_gpu_is_said_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    import importlib

    module = importlib.import_module("daft_vllm.udf.planning.engine")
    monkeypatch.setattr(module, "_logged", set())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for _ in range(2):
        prompt(col("q"))
    assert caplog.text.count("no GPU is visible") == 1
