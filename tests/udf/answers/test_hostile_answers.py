"""Whatever goes wrong with one answer is that row's error: the other rows of its batch have their values."""

from __future__ import annotations

import json
import logging
from concurrent.futures import Future
from typing import Annotated, Any

import pytest
from daft import Series
from pydantic import AfterValidator, BaseModel, PlainSerializer

from daft_vllm import EngineConfig, EngineStats, Outcome, Request, SamplingOptions
from daft_vllm.udf.answers.return_format import ReturnFormat
from daft_vllm.udf.options import PromptOptions
from daft_vllm.udf.worker.actor import PromptActor
from daft_vllm.udf.worker.spec import PromptSpec
from tests.helpers import code_of

pytestmark = pytest.mark.timeout(120)

TREE = {
    "type": "object",
    "properties": {"child": {"anyOf": [{"allOf": [{"anyOf": [{"allOf": [{"$ref": "#"}]}]}]}, {"type": "null"}]}},
    "required": ["child"],
    "additionalProperties": False,
}


class Node(BaseModel):
    child: Node | None = None


class Left(BaseModel):
    child: Left | Right | None = None
    left: int | None = None


class Right(BaseModel):
    child: Left | Right | None = None
    right: int | None = None


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def _raises(kind: type[BaseException]) -> Any:
    def check(value: int) -> int:
        if value == 13:
            raise kind("bad \ud800 luck")
        return value

    return check


def _recurses(value: int) -> int:
    return _recurses(value) if value == 13 else value


def _model(*annotations: Any) -> Any:
    class Answer(BaseModel):
        n: Annotated[int, *annotations]

    return Answer


class _Told:
    """An engine that answers as it was told."""

    is_over = False

    def __init__(self, answers: list[str]) -> None:
        self._answers = iter(answers)

    def submit(self, requests: list[Request], *, dedupe: bool, each: object, limits: object) -> Future[list[Outcome]]:
        future: Future[list[Outcome]] = Future()
        future.set_result([Outcome(text=next(self._answers), finish_reason="stop") for _ in requests])
        return future

    def stats(self) -> EngineStats:
        return EngineStats()

    def takes(self, kind: str) -> bool:
        return False


def _answered(return_format: Any, answers: list[str], **options: Any) -> list[Any]:
    """Return the column that these answers make."""
    spec = PromptSpec(
        engine=EngineConfig("smollm2-135m", gpus=0),
        sampling=SamplingOptions(max_tokens=6),
        format=ReturnFormat.of(return_format, enforce="validate"),
        options=PromptOptions(**options),
    )
    actor = PromptActor(spec)
    actor._engine = _Told(answers)  # type: ignore[assignment]
    column: list[Any] = actor.answer(
        Series.from_pylist([f"row {i}" for i in range(len(answers))], name="q")
    ).to_pylist()
    return column


def _nested(levels: int, inner: str = "null") -> str:
    return '{"child":' * levels + inner + "}" * levels


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        (TREE, '{"child":null}', _nested(165)),
        (Node, '{"child":null}', _nested(50_000)),
        (TREE, '{"child":null}', _nested(10, '{"child":null,"child":[]}')),
        ({"type": "array"}, "[]", "[" * 100_000),
        ({"type": "array", "items": {"type": "integer"}}, "[1]", f"[{'9' * 5000}]"),
        ({"type": "array", "items": {"type": "number"}}, "[1.5]", "[1e999]"),
        ({"type": "array", "items": {"type": "number", "multipleOf": 0.5}}, "[1.5]", "[1e-300]"),
        (list[int], "[1]", f"[{'9' * 4000}]"),
        (list[float], "[1]", "[1e999]"),
        (dict[str, str], '{"a":"b"}', '{"a":"\\ud800"}'),
        (str, "good", "half \ud800"),
        (["good", "half"], "good", "half \ud800"),
        (_model(AfterValidator(_raises(KeyError))), '{"n":1}', '{"n":13}'),
        (_model(AfterValidator(_raises(ValueError))), '{"n":1}', '{"n":13}'),
        (_model(AfterValidator(_raises(Unspeakable))), '{"n":1}', '{"n":13}'),
        (_model(AfterValidator(_raises(StopIteration))), '{"n":1}', '{"n":13}'),
        (_model(AfterValidator(_raises(MemoryError))), '{"n":1}', '{"n":13}'),
        (_model(AfterValidator(_recurses)), '{"n":1}', '{"n":13}'),
    ],
)
@pytest.mark.parametrize("details", [False, True])
def test_the_other_rows_have_their_values(form: Any, good: str, bad: str, details: bool) -> None:
    answers = [good] * 50
    answers.insert(20, bad)
    column = _answered(form, answers, details=details)
    assert len(column) == 51
    if not details:
        assert column.pop(20) is None
        assert None not in column
        return
    assert [code_of(row) for row in column] == [None] * 20 + ["invalid_output"] + [None] * 30
    assert all(row["value"] is not None for i, row in enumerate(column) if i != 20)


def test_a_serializer_that_raises_is_not_needed() -> None:
    form = _model(PlainSerializer(_raises(KeyError)))
    assert _answered(form, ['{"n":1}', '{"n":13}']) == [{"n": 1}, {"n": 13}]


def test_an_interrupt_is_no_error_of_a_row() -> None:
    with pytest.raises(KeyboardInterrupt):
        _answered(_model(AfterValidator(_raises(KeyboardInterrupt))), ['{"n":1}', '{"n":13}'])


def test_the_log_names_row_and_column(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="daft_vllm"):
        _answered({"type": "integer"}, ["1", "2", "three", "4"])
    assert "the first is row 2 of a batch of 'q': invalid_output" in caplog.text


def test_an_answer_that_unions_take_for_ever_to_read_is_an_error() -> None:
    """Pydantic tries both models at each level: 18 levels take 0.4 seconds, 30 half an hour."""
    good, deep = '{"child":{"right":1}}', _nested(12, '{"left":1}')
    hostile = _nested(40, '{"left":"one"}')
    rows = _answered(Left | Right, [good, hostile, deep, good], details=True)
    assert [code_of(row) for row in rows] == [None, "invalid_output", None, None]
    assert "more than" in rows[1]["error"]
    assert json.loads(rows[0]["value"]) == {"child": {"right": 1, "child": None}, "left": None}


@pytest.mark.parametrize("keyword", ["oneOf", "anyOf"])
def test_an_answer_that_choices_take_for_ever_to_check_is_an_error(keyword: str) -> None:
    """jsonschema checks each level of lists twice as often as the level around it."""
    lists = {"type": "array", "items": {"$ref": "#/$defs/part"}}
    part = {keyword: [lists, {**lists, "maxItems": 0, "minItems": 0}, {**lists, "minItems": 2}, {"type": "integer"}]}
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/part"}}, "$defs": {"part": part}}
    form = ReturnFormat.of({**schema, "required": ["a"]}, enforce="validate")
    hostile = form.parse('{"a":' + "[" * 40 + '"x"' + "]" * 40 + "}")
    assert hostile.error is not None
    assert "can't be checked" in hostile.error.message
    assert form.parse('{"a":[1]}').error is None


def test_equal_items_are_found_in_a_long_list() -> None:
    form = ReturnFormat.of({"type": "array", "uniqueItems": True}, enforce="validate")
    items: list[Any] = [value for i in range(20_000) for value in (i, {"i": i})]
    assert form.parse(json.dumps(items)).error is None
    for twice in (7.0, {"i": 19_999}):
        assert form.parse(json.dumps([*items, twice])).error is not None
    assert form.parse("[1,true,0,false]").error is None


def test_messages_are_short() -> None:
    form = ReturnFormat.of({"type": "array", "items": {"type": "integer"}, "maxItems": 3})
    error = form.parse(json.dumps(list(range(50_000)))).error
    assert error is not None
    assert len(error.message) < 1100
