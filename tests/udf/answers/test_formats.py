"""Every way of saying what an answer is: from real generation to a typed column, through Parquet and back."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Optional, TypedDict, Union

import daft
import pyarrow as pa
import pytest
from daft import DataType, col
from pydantic import BaseModel, Field, HttpUrl

from daft_vllm import Choice, Grammar, Json, OfflineEngine, Regex, Tools, prompt
from daft_vllm.errors import SchemaError
from daft_vllm.udf.answers.return_format import ReturnFormat
from tests.conftest import ENGINE_ARGS
from tests.helpers import code_of

TEXT, INT, FLOAT, BOOL = DataType.string(), DataType.int64(), DataType.float64(), DataType.bool()
struct, listed = DataType.struct, DataType.list
Short = Annotated[str, Field(max_length=12)]


class Size(enum.Enum):
    SMALL = 1
    LARGE = 2


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Maker(BaseModel):
    name: Short
    since: Annotated[int, Field(ge=1900, le=2030)]


class Nested(BaseModel):
    maker: Maker
    makers: Annotated[list[Maker], Field(max_length=2)]
    colour: Colour
    size: Size
    kind: Literal["new", "used"]
    note: Optional[Short] = None  # noqa: UP045


class Aliased(BaseModel):
    total: Annotated[int, Field(alias="Total amount", ge=0, le=99)]
    left: Annotated[int, Field(default=7, ge=0, le=9)]


class Moments(BaseModel):
    day: datetime.date
    at: datetime.datetime
    clock: datetime.time
    took: datetime.timedelta


class Exact(BaseModel):
    price: Annotated[decimal.Decimal, Field(max_digits=6, decimal_places=2)]
    ident: uuid.UUID
    link: HttpUrl


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: Annotated[int, Field(ge=1, le=9)]


class Dog(BaseModel):
    kind: Literal["dog"]
    good: bool


class Owner(BaseModel):
    pet: Annotated[Union[Cat, Dog], Field(discriminator="kind")]  # noqa: UP007


class Tree(BaseModel):
    value: Annotated[int, Field(ge=0, le=9)]
    children: Annotated[list[Tree], Field(max_length=1)] = []


class Maps(BaseModel):
    scores: Annotated[dict[Literal["a", "b"], Annotated[int, Field(ge=0, le=9)]], Field(max_length=2)]
    pair: tuple[Annotated[int, Field(ge=0, le=9)], bool]


class Point(NamedTuple):
    x: Annotated[int, Field(ge=0, le=99)]
    y: Annotated[int, Field(ge=0, le=99)]


class Person(TypedDict):
    born: Annotated[int, Field(ge=1900, le=2030)]


class Film(TypedDict):
    year: Annotated[int, Field(ge=1900, le=2030)]
    seen: bool
    cast: Annotated[list[Person], Field(max_length=2)]


@dataclasses.dataclass
class Song:
    seconds: Annotated[int, Field(ge=1, le=999)]
    loud: bool = False


def search(query: Annotated[str, Field(max_length=10)], limit: Annotated[int, Field(ge=1, le=9)] = 3) -> None:
    """Search the catalogue."""


OPENAI_TOOL = {
    "type": "function",
    "function": {
        "name": "stop",
        "description": "End the talk.",
        "parameters": {"type": "object", "properties": {"polite": {"type": "boolean"}}, "required": ["polite"]},
    },
}
CALL = struct({"name": TEXT, "arguments": TEXT})
MAKER = struct({"name": TEXT, "since": INT})
DAFT_TYPE = struct(
    {
        "small": DataType.int8(),
        "day": DataType.date(),
        "price": DataType.decimal128(5, 1),
        "when": DataType.timestamp("us", "UTC"),
        "pair": DataType.fixed_size_list(DataType.uint8(), 2),
    }
)
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"]}

FORMATS: dict[str, tuple[Any, DataType, Callable[[Any], bool]]] = {
    "nested model": (
        Nested,
        struct({"maker": MAKER, "makers": listed(MAKER), "colour": TEXT, "size": INT, "kind": TEXT, "note": TEXT}),
        lambda v: v["size"] in (1, 2) and v["colour"] in ("red", "blue") and len(v["maker"]["name"]) <= 12,
    ),
    "alias and default": (
        Aliased,
        struct({"Total amount": INT, "left": INT}),
        lambda v: 0 <= v["Total amount"] <= 99 and 0 <= v["left"] <= 9,
    ),
    "dates and times": (
        Moments,
        struct(
            {
                "day": DataType.date(),
                "at": DataType.timestamp("us"),
                "clock": DataType.time("us"),
                "took": DataType.duration("us"),
            }
        ),
        lambda v: isinstance(v["day"], datetime.date) and isinstance(v["took"], datetime.timedelta),
    ),
    "decimal, UUID, URL": (
        Exact,
        struct({"price": DataType.decimal128(6, 2), "ident": TEXT, "link": TEXT}),
        lambda v: isinstance(v["price"], decimal.Decimal) and bool(uuid.UUID(v["ident"])) and "://" in v["link"],
    ),
    "discriminated union": (
        Owner,
        struct({"pet": TEXT}),
        lambda v: set(json.loads(v["pet"])) in ({"kind", "lives"}, {"kind", "good"}),
    ),
    "recursion": (Tree, struct({"value": INT, "children": listed(TEXT)}), lambda v: 0 <= v["value"] <= 9),
    "maps and tuples": (
        Maps,
        struct({"scores": DataType.map(TEXT, INT), "pair": struct({"_0": INT, "_1": BOOL})}),
        lambda v: {key for key, _ in v["scores"]} <= {"a", "b"} and isinstance(v["pair"]["_1"], bool),
    ),
    "TypedDict": (
        Film,
        struct({"year": INT, "seen": BOOL, "cast": listed(struct({"born": INT}))}),
        lambda v: 1900 <= v["year"] <= 2030,
    ),
    "dataclass": (Song, struct({"seconds": INT, "loud": BOOL}), lambda v: 1 <= v["seconds"] <= 999),
    "NamedTuple": (Point, struct({"x": INT, "y": INT}), lambda v: 0 <= v["x"] <= 99),
    "int": (int, INT, lambda v: isinstance(v, int)),
    "bool": (bool, BOOL, lambda v: v in (True, False)),
    "bounded float": (Annotated[float, Field(ge=0, le=1)], FLOAT, lambda v: 0 <= v <= 1),
    "optional": (Literal[1, 2] | None, INT, lambda v: v in (1, 2, None)),
    "list": (Annotated[list[Short], Field(max_length=3)], listed(TEXT), lambda v: len(v) <= 3),
    "enum of integers": (Size, INT, lambda v: v in (1, 2)),
    "enum of texts": (Colour, TEXT, lambda v: v in ("red", "blue")),
    "literal": (Literal["yes", "no"], TEXT, lambda v: v in ("yes", "no")),
    "list of choices": (["yes", "no"], TEXT, lambda v: v in ("yes", "no")),
    "Choice": (Choice(["yes", 'it\'s "no"']), TEXT, lambda v: v in ("yes", 'it\'s "no"')),
    "JSON Schema": (SCHEMA, struct({"n": INT}), lambda v: 0 <= v["n"] <= 9),
    "Daft type": (DAFT_TYPE, DAFT_TYPE, lambda v: -128 <= v["small"] <= 127 and len(v["pair"]) == 2),
    "Arrow schema": (
        pa.schema([pa.field("n", pa.uint8()), pa.field("ok", pa.bool_())]),
        struct({"n": DataType.uint8(), "ok": BOOL}),
        lambda v: 0 <= v["n"] <= 255,
    ),
    "Regex": (Regex(r"[A-Z]{2}-\d{3}"), TEXT, lambda v: len(v) == 6 and v[2] == "-"),
    "EBNF": (Grammar('root ::= "yes" | "no" " indeed"?'), TEXT, lambda v: v in ("yes", "no", "no indeed")),
    "Lark": (Grammar('start: "x" NUMBER\nNUMBER: /[0-9]{2}/'), TEXT, lambda v: v[0] == "x" and v[1:].isdigit()),
    "Tools": (Tools([search, Dog, OPENAI_TOOL]), CALL, lambda v: v["name"] in ("search", "Dog", "stop")),
    "list of functions": ([search], CALL, lambda v: len(json.loads(v["arguments"])["query"]) <= 10),
}


@pytest.mark.parametrize("name", FORMATS)
def test_round_trip(name: str, engine: OfflineEngine, smollm2: str, tmp_path: Path) -> None:
    given, dtype, holds = FORMATS[name]
    questions = ["Tell me about a red car.", "What does a cat eat?", None]
    drawn: dict[str, Any] = {}
    if name == "recursion":  # a likeliest token each time goes deeper and deeper
        questions, drawn = [f"Draw tree {i}." for i in range(12)], {"temperature": 1.0, "seed": 1}
    df = daft.from_pydict({"id": list(range(len(questions))), "q": questions})
    answer = prompt(
        col("q"),
        given,
        model=smollm2,
        engine_args=ENGINE_ARGS,
        gpus=0,
        use_process=False,
        max_tokens=300,
        details=True,
        **drawn,
    )
    df = df.with_column("a", answer).collect()
    rows = df.to_pydict()
    values = [row["value"] for row in rows["a"]]
    assert [code_of(row) is None for row in rows["a"]] == [value is not None for value in values] or name == "optional"
    if name == "recursion":
        assert any(values)
    else:
        assert [code_of(row) for row in rows["a"]] == [None, None, "null_prompt"], rows
    assert all(holds(value) for value in values if value is not None), values
    assert df.schema()["a"].dtype.fields["value"] == dtype

    df.select("id", col("a").get("value").alias("v")).write_parquet(str(tmp_path))
    again = daft.read_parquet(f"{tmp_path}/*.parquet").sort("id")
    assert again.to_pydict()["v"] == values
    if not dtype.is_fixed_size_list():
        assert again.schema()["v"].dtype == dtype
    if dtype.is_struct():
        assert again.select(col("v").unnest()).column_names == list(dtype.fields)


def test_any_json(engine: OfflineEngine, smollm2: str) -> None:
    df = daft.from_pydict({"q": ['Give me the JSON object {"a": 1}']})
    answer = prompt(
        col("q"), Json(), model=smollm2, engine_args=ENGINE_ARGS, gpus=0, use_process=False, max_tokens=60, details=True
    )
    (row,) = df.with_column("a", answer).to_pydict()["a"]
    if row["error"] is None:
        assert json.dumps(json.loads(row["value"])) == json.dumps(json.loads(row["text"]))
    else:
        assert row["error"].startswith("truncated")


def test_a_schema_file(tmp_path: Path) -> None:
    path = tmp_path / "answer.json"
    path.write_text(json.dumps(SCHEMA))
    assert ReturnFormat.of(path) == ReturnFormat.of(str(path)) == ReturnFormat.of(SCHEMA)
    path.write_text("[]")
    with pytest.raises(SchemaError, match="holds no JSON Schema"):
        ReturnFormat.of(path)
    with pytest.raises(SchemaError, match="can't be read"):
        ReturnFormat.of(tmp_path / "nowhere.json")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (7, "is not understood"),
        ("City", "is not understood"),
        (object(), "is not understood"),
        (DataType.image(), "a model can't write"),
        (struct({"a": listed(DataType.python())}), "at /a/\\*"),
        (DataType.map(INT, INT), "keys of type"),
        ([], "at least one choice"),
        (["a", 1], "choices are strings"),
        (Annotated[decimal.Decimal, Field(max_digits=50)], "38 digits"),
        (Callable[[int], int], "is not understood|no JSON Schema"),
        ({"type": "integr"}, "not a JSON Schema"),
    ],
)
def test_what_is_no_format_is_refused(given: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        ReturnFormat.of(given)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Regex("("), "not a regular expression"),
        (lambda: Grammar(" "), "text of a grammar"),
        (lambda: Tools([]), "different names"),
        (lambda: Tools([search, search]), "different names"),
        (lambda: Tools([7]), "is no tool"),
    ],
)
def test_formats_check_what_they_are_given(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        make()


def test_values_that_no_column_holds_are_errors_of_their_rows() -> None:
    exact = ReturnFormat.of(Exact)
    link, ident = "https://a.org/", str(uuid.UUID(int=1))
    assert exact.parse(json.dumps({"price": "12.5", "ident": ident, "link": link})).value["price"] == decimal.Decimal(
        "12.50"
    )
    for form, text in (
        (exact, json.dumps({"price": "12345.678", "ident": ident, "link": link})),
        (ReturnFormat.of({"type": "number"}), "1e999"),
        (ReturnFormat.of({"type": "string"}), '"\\ud800"'),
        (ReturnFormat.of({"type": "string", "format": "date"}), '"2024-02-30"'),
        (ReturnFormat.of(DataType.int8()), "300"),
    ):
        parsed = form.parse(text)
        assert parsed.value is None
        assert parsed.error is not None
        assert parsed.error.code == "invalid_output"


def test_recursion_and_unions_say_that_they_are_json_text() -> None:
    assert ReturnFormat.of(Tree).json_text == ["/children/*"]
    assert ReturnFormat.of(Owner).json_text == ["/pet"]
    assert ReturnFormat.of(Nested).json_text == []
