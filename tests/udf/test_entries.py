"""The same behaviour through ``daft_vllm.prompt`` and through Daft's own ``prompt`` with our provider."""

from __future__ import annotations

import datetime
import pickle
from collections.abc import Callable
from typing import Annotated, Any, Literal

import daft
import pytest
from daft import DataType, Session, col, lit
from daft.functions import prompt as daft_prompt
from pydantic import BaseModel, Field

from daft_vllm import OfflineEngine, PerRow, Provider, Regex, prompt, template
from daft_vllm.errors import OptionError, RowError, SchemaError
from tests.conftest import ENGINE_ARGS

Ask = Callable[..., daft.Expression]


class Event(BaseModel):
    """Something that happened."""

    kind: str = Field(max_length=8)
    year: int = Field(ge=1900, le=2100)
    day: datetime.date | None
    names: Annotated[list[str], Field(max_length=0)]


@pytest.fixture(params=["daft_vllm.prompt", "daft.functions.prompt"])
def ask(request: pytest.FixtureRequest, engine: OfflineEngine, smollm2: str) -> Ask:
    """Both ways to ask the session's engine."""
    fixed: dict[str, Any] = {"model": smollm2, "engine_args": ENGINE_ARGS, "gpus": 0, "max_tokens": 12}

    def ours(messages: Any, return_format: Any = None, **options: Any) -> daft.Expression:
        return prompt(messages, return_format, use_process=False, **{**fixed, **options})

    def through_daft(messages: Any, return_format: Any = None, **options: Any) -> daft.Expression:
        return daft_prompt(messages, return_format, provider=Provider(**fixed), **options)

    return ours if request.param == "daft_vllm.prompt" else through_daft


def test_every_row_once(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    questions: list[str | None] = [f"What is {i} plus {i}?" for i in range(300)]
    questions[7], questions[9] = None, "word " * 2000
    df = daft.from_pydict({"id": list(range(300)), "q": questions}).with_column("a", ask(col("q"), max_tokens=1))
    assert df.schema()["a"].dtype == DataType.string()
    rows = df.to_pydict()
    assert rows["id"] == list(range(300))
    assert rows["q"] == questions
    assert [i for i, answer in enumerate(rows["a"]) if answer is None] == [7, 9]
    assert "prompt_too_long 1" in caplog.text


def test_typed_answers(ask: Ask) -> None:
    df = daft.from_pydict({"q": ["The cup final of 1966", None, "The election of 1992"]})
    df = df.with_column("a", ask(col("q"), Event, max_tokens=90)).collect()
    types = {"kind": DataType.string(), "year": DataType.int64(), "day": DataType.date()}
    dtype = df.schema()["a"].dtype
    assert {name: dtype.fields[name] for name in types} == types
    assert dtype.fields["names"] == DataType.list(DataType.string())
    first, second, third = df.to_pydict()["a"]
    assert second is None
    for answer in (first, third):
        Event.model_validate(answer)


def test_types_that_daft_makes_a_string_column_of(engine: OfflineEngine, smollm2: str) -> None:
    """Daft 0.7 has no type for a Literal, in which case its prompt has a string column: of JSON."""

    class Kind(BaseModel):
        kind: Literal["sports", "politics"]

    df = daft.from_pydict({"q": ["The cup final of 1966"]})
    provider = Provider(model=smollm2, engine_args=ENGINE_ARGS, gpus=0, max_tokens=20)
    df = df.with_column("a", daft_prompt(col("q"), Kind, provider=provider)).collect()  # type: ignore[arg-type]
    assert df.schema()["a"].dtype == DataType.string()
    Kind.model_validate_json(df.to_pydict()["a"][0])


@pytest.mark.parametrize(
    ("return_format", "dtype", "allowed"),
    [
        (["red", "blue"], DataType.string(), {"red", "blue"}),
        (Regex("[ab]{3}"), DataType.string(), {a + b + c for a in "ab" for b in "ab" for c in "ab"}),
        (bool, DataType.bool(), {True, False}),
        (int, DataType.int64(), None),
        (dict[str, bool], None, None),
    ],
)
def test_other_formats(ask: Ask, return_format: Any, dtype: DataType | None, allowed: set[Any] | None) -> None:
    df = daft.from_pydict({"q": ["Is the sea red?", "How deep is it?"]})
    df = df.with_column("a", ask(col("q"), return_format, max_tokens=30)).collect()
    assert dtype is None or df.schema()["a"].dtype == dtype
    answers = df.to_pydict()["a"]
    assert all(answer in allowed for answer in answers) if allowed else None not in answers


def test_the_same_answers_from_both(engine: OfflineEngine, smollm2: str) -> None:
    fixed: dict[str, Any] = {"model": smollm2, "engine_args": ENGINE_ARGS, "gpus": 0, "max_tokens": 12}
    df = daft.from_pydict({"q": [f"Tell me about the number {i}." for i in range(30)], "n": list(range(30))})
    messages = [lit("Be short."), col("q"), col("n")]
    said = {"system_message": "You are a poet.", "examples": [("Hello", "Goodbye")]}
    ours = prompt(messages, use_process=False, **said, **fixed)
    theirs = daft_prompt(messages, provider=Provider(**fixed), **said)
    rows = df.select(ours.alias("a"), theirs.alias("b")).to_pydict()
    assert rows["a"] == rows["b"]


def test_conversations_templates_and_documents(ask: Ask) -> None:
    talk = [{"role": "user", "content": "My name is Ada."}, {"role": "assistant", "content": "Hello Ada."}]
    talk.append({"role": "user", "content": "What is my name?"})
    df = daft.from_pydict(
        {"talk": [talk, None], "name": ["x", "y"], "file": [b"<!DOCTYPE html><p>Hello</p>", b"\x00\x01\x02"]}
    )
    rows = df.select(
        ask(col("talk")).alias("talk"),
        ask(template("Say {name}", df)).alias("template"),
        ask([lit("What is in it?"), col("file")]).alias("file"),
    ).to_pydict()
    assert [answer is None for answer in rows["talk"]] == [False, True]
    assert None not in rows["template"]
    assert [answer is None for answer in rows["file"]] == [False, True]


def test_failures_on_demand(ask: Ask) -> None:
    df = daft.from_pydict({"q": ["hello", "word " * 2000]}).with_column("a", ask(col("q"), on_error="raise"))
    with pytest.raises(Exception, match="prompt_too_long") as caught:
        df.collect()
    chain = [caught.value, caught.value.__cause__, caught.value.__context__]
    assert any(isinstance(e, RowError) for e in chain) or "RowError" in str(caught.value)


def test_options_are_checked_first(ask: Ask) -> None:
    with pytest.raises(OptionError, match="Did you mean 'temperature'"):
        ask(col("q"), temprature=1)
    with pytest.raises(SchemaError, match="uniqueItems"):
        ask(col("q"), {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True})
    with pytest.raises(OptionError, match="max_tokens"):
        ask(col("q"), max_tokens=0)


def test_a_session_finds_the_provider(engine: OfflineEngine, smollm2: str) -> None:
    session = Session()
    provider = Provider("mine", model=smollm2, engine_args=ENGINE_ARGS, gpus=0, max_tokens=2)
    session.attach_provider(provider)
    session.set_provider("mine")
    df = daft.from_pydict({"q": ["hello"]})
    with daft.session_context(session) if hasattr(daft, "session_context") else session:
        by_name = daft_prompt(col("q"), provider=session.get_provider("mine"))
        assert df.select(by_name).to_pydict()["q"][0]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"details": True}, "use daft_vllm.prompt"),
        ({"max_retries": 3}, "retries"),
        ({"return_format": int}, "return_format is an argument of Daft's prompt itself"),
        ({"max_concurrency": None}, "at least 1"),
        ({"use_process": True}, "use daft_vllm.prompt"),
        ({"store": "s"}, "store is kept by daft-vllm.s own function only: use daft_vllm.prompt"),
        ({"max_tokens": col("n")}, "is a column"),
        ({"max_concurrency": 0}, "at least 1"),
        ({"modle": "x"}, "Did you mean 'model'"),
        ({"on_error": "explode"}, "on_error"),
    ],
)
def test_what_the_provider_refuses(options: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        Provider(gpus=0, **options)


def test_formats_by_row_need_our_own_prompt() -> None:
    with pytest.raises(OptionError, match="PerRow has a column"):
        Provider(gpus=0).get_prompter(return_format=PerRow(col("kind"), {"a": ["x"], "b": ["y"]}))


def test_the_descriptor_travels() -> None:
    descriptor = Provider("mine", gpus=0, on_error="log").get_prompter("smollm2-135m", Event)
    again = pickle.loads(pickle.dumps(descriptor))
    assert (again.get_provider(), again.get_model()) == ("mine", "smollm2-135m")
    assert again.spec.options.on_error == "null"
    assert again.get_udf_options().num_gpus == 0
