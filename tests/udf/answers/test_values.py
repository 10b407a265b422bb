"""Whatever a model wrote is in the column, under the schema's names, or is an error."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import enum
import json
import uuid
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import pyarrow as pa
import pytest
import typing_extensions
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import (
    AliasChoices,
    AliasPath,
    Base64Bytes,
    Base64Str,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    SecretStr,
    computed_field,
    create_model,
    field_serializer,
    model_serializer,
)
from pydantic import Json as PydanticJson
from pydantic.json_schema import SkipJsonSchema

from daft_vllm.engine.constraints.enforcement import enforcement_of
from daft_vllm.engine.constraints.limits.validator import validator_of
from daft_vllm.errors import SchemaError
from daft_vllm.udf.answers.results import value_array
from daft_vllm.udf.answers.return_format import Parsed, ReturnFormat
from daft_vllm.udf.columns.parts import examples_of


class Colour(enum.Enum):
    RED = "red"
    TWO = 2


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 9


class Kind(NamedTuple):
    """A type of field, and triples of a value as JSON, in the column, and as an example gives it."""

    type: Any
    values: st.SearchStrategy[tuple[Any, Any]]


def _same(values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, Any]]:
    return values.map(lambda value: (value, value))


def _text_of(values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, Any]]:
    return values.map(lambda value: (str(value), str(value)))


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=8)
INTEGERS = st.integers(-(2**63), 2**63 - 1)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
NAIVE = st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2100, 1, 1))
AWARE = st.datetimes(datetime.datetime(1900, 1, 2), datetime.datetime(2100, 1, 1), timezones=st.just(datetime.UTC))
PRICES = st.decimals(-999, 999, places=2)
SCALARS = [
    Kind(str, _same(TEXTS)),
    Kind(int, _same(INTEGERS)),
    Kind(float, _same(NUMBERS)),
    Kind(bool, _same(st.booleans())),
    Kind(Colour, st.sampled_from(list(Colour)).map(lambda one: (one.value, json.dumps(one.value)))),
    Kind(Level, st.sampled_from(list(Level)).map(lambda one: (one.value, one.value))),
    Kind(uuid.UUID, _text_of(st.uuids())),
    Kind(SecretStr, _same(TEXTS)),
    Kind(bytes, TEXTS.map(lambda text: (text, text.encode()))),
    Kind(datetime.date, st.dates().map(lambda day: (day.isoformat(), day))),
    Kind(datetime.time, st.times().map(lambda clock: (clock.isoformat(), clock))),
    Kind(datetime.datetime, NAIVE.map(lambda moment: (moment.isoformat(), moment))),
    Kind(
        typing_extensions.Annotated[decimal.Decimal, Field(max_digits=5, decimal_places=2)],
        PRICES.map(lambda p: (str(p), p)),
    ),
    Kind(int | str, st.one_of(INTEGERS, TEXTS).map(lambda value: (value, json.dumps(value, ensure_ascii=False)))),
]


def _list(kind: Kind) -> Kind:
    values = st.lists(kind.values, max_size=3)
    return Kind(list[kind.type], values.map(lambda pairs: ([a for a, _ in pairs], [b for _, b in pairs])))  # type: ignore[name-defined]


def _sequence(kind: Kind) -> Kind:
    return _list(kind)._replace(type=Sequence[kind.type])  # type: ignore[name-defined]


def _optional(kind: Kind) -> Kind:
    return Kind(kind.type | None, st.one_of(st.just((None, None)), kind.values))


def _map(kind: Kind) -> Kind:
    values = st.dictionaries(TEXTS, kind.values, max_size=3)
    both = values.map(lambda pairs: ({k: a for k, (a, _) in pairs.items()}, [(k, b) for k, (_, b) in pairs.items()]))
    return Kind(dict[str, kind.type], both)  # type: ignore[name-defined]


def _pair(kind: Kind) -> Kind:
    both = st.tuples(kind.values, kind.values)
    return Kind(
        tuple[kind.type, kind.type],  # type: ignore[name-defined]
        both.map(lambda pairs: ([a for a, _ in pairs], {f"_{i}": b for i, (_, b) in enumerate(pairs)})),
    )


NAMES = ["plain", "type", "fields", "serialization", "computed_fields", "default", "measurement units", "ß", "metadata"]
ALIASES: list[Callable[[str], dict[str, Any]]] = [
    lambda name: {"alias": name},
    lambda name: {"validation_alias": name},
    lambda name: {"validation_alias": name, "serialization_alias": "elsewhere"},
    lambda name: {"validation_alias": AliasChoices(name, "another", AliasPath("a", 1))},
    lambda name: {"validation_alias": AliasChoices(AliasPath("a", 1), name)},
    lambda name: {"validation_alias": name, "exclude": True},
    lambda name: {"alias": name, "exclude": True, "repr": False},
]


@st.composite
def _models(draw: st.DrawFn, kinds: st.SearchStrategy[Kind]) -> Kind:
    """Return a Pydantic model of fields whose names for reading and for writing differ."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True))
    fields: dict[str, Any] = {}
    parts: dict[str, st.SearchStrategy[tuple[Any, Any]]] = {}
    for i, name in enumerate(names):
        kind = draw(kinds)
        annotated: Any = kind.type
        if draw(st.booleans()):
            annotated = Annotated[annotated, PlainSerializer(lambda value: {"written as": repr(value)})]
        fields[f"field_{i}"] = (annotated, Field(**draw(st.sampled_from(ALIASES))(name)))
        parts[name] = kind.values

    def _write(self: Any) -> dict[str, Any]:
        return {"nothing": "of it"}

    def _size(self: Any) -> int:
        return 7

    more: dict[str, Any] = {}
    if draw(st.booleans()):
        more["write"] = model_serializer(_write)
    if draw(st.booleans()):
        more["size"] = computed_field(property(_size))
    base = type("Base", (BaseModel,), {**more, "__module__": __name__}) if more else BaseModel
    model = create_model("Drawn", __base__=base, **fields)
    values = st.fixed_dictionaries(parts)
    both = values.map(lambda row: ({n: a for n, (a, _) in row.items()}, {n: b for n, (_, b) in row.items()}))
    return Kind(model, both)


def _wrapped(kinds: st.SearchStrategy[Kind]) -> st.SearchStrategy[Kind]:
    wrappers = st.sampled_from([_list, _sequence, _optional, _map, _pair])
    return st.one_of(_models(kinds), st.builds(lambda wrap, kind: wrap(kind), wrappers, kinds))


KINDS = st.recursive(st.sampled_from(SCALARS), _wrapped, max_leaves=5)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(_models(KINDS), st.data())
def test_a_valid_answer_comes_out_of_the_column_equal(model: Kind, data: st.DataObject) -> None:
    form = ReturnFormat.of(model.type)
    written, expected = data.draw(model.values)
    text = json.dumps(written, ensure_ascii=False)

    parsed = form.parse(text)

    assert parsed.error is None
    assert parsed.value == expected
    kept = [parsed]
    assert value_array(kept, form.dtype).to_pylist() == [expected]
    assert kept[0].error is None
    again = form.parse(form.write(form.python_value(text)))  # an example's answer is written as the model writes it
    assert again == parsed


class Units(BaseModel):
    """The measurement."""

    units: str = Field(validation_alias="measurementUnits")
    amount: float = Field(exclude=True)

    @field_serializer("amount")
    def _rounded(self, value: float) -> str:
        return f"about {value:.0f}"


@dataclasses.dataclass
class Box:
    size: Annotated[int, Field(validation_alias="Size")]
    units: Units
    label: str = dataclasses.field(default="none", init=False)


class Corner(NamedTuple):
    at: Units
    z: int


class Film(typing_extensions.TypedDict):
    year: Annotated[int, Field(validation_alias="Year")]


class Encoded(BaseModel):
    model_config = ConfigDict(val_json_bytes="base64")
    data: bytes


class Distance:
    """A class of the user's: only its own serializer can write it."""

    def __init__(self, metres: float) -> None:
        self.metres = metres

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(
            cls,
            core_schema.float_schema(),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda value: value.metres),
        )


UNITS = {"measurementUnits": "cm", "amount": 2.5}


@pytest.mark.parametrize(
    ("kind", "written", "expected"),
    [
        (Units, UNITS, UNITS),
        (Box, {"Size": 3, "units": UNITS}, {"Size": 3, "units": UNITS}),
        (Corner, [UNITS, 4], {"at": UNITS, "z": 4}),
        (Film, {"Year": 1999}, {"Year": 1999}),
        (list[Units], [UNITS], [UNITS]),
        (dict[Colour, Units], {"red": UNITS}, [("red", UNITS)]),
        (
            create_model("Urn", a=(Base64Bytes, ...), b=(Base64Str, ...)),
            {"a": "YWI=", "b": "YWI="},
            {"a": b"ab", "b": "ab"},
        ),
        (create_model("Skip", a=(int, ...), b=(SkipJsonSchema[int], 3)), {"a": 1}, {"a": 1}),
        (
            create_model(
                "Mode",
                __config__=ConfigDict(json_schema_mode_override="serialization"),
                a=(int, Field(validation_alias="q", serialization_alias="z")),
            ),
            {"q": 1},
            {"q": 1},
        ),
        (dict[Level, Units], {"9": UNITS}, [("9", UNITS)]),
        (dict[Annotated[str, Field(pattern="^[a-z]+$")], int], {"ab": 1}, [("ab", 1)]),
        (dict[decimal.Decimal, int], {"1.5": 1}, [("1.5", 1)]),
        (Encoded, {"data": base64.b64encode(b"\xff\x00").decode()}, {"data": b"\xff\x00"}),
        (create_model("Far", far=(Distance, ...)), {"far": 2.5}, {"far": 2.5}),
        (
            create_model(
                "By", __config__=ConfigDict(validate_by_alias=False, validate_by_name=True), a=(int, Field(alias="A"))
            ),
            {"a": 1},
            {"a": 1},
        ),
    ],
)
def test_names_of_every_kind_of_type(kind: Any, written: Any, expected: Any) -> None:
    form = ReturnFormat.of(kind)
    assert form.parse(json.dumps(written)) == Parsed(expected)


@pytest.mark.parametrize(
    ("keys", "good", "bad"),
    [
        (int, ["0", "-12"], ["x", "1.5", ""]),
        (Annotated[int, Field(ge=0)], ["7"], ["-7"]),
        (float, ["1.5", "-2.0"], ["x"]),
        (bool, ["true"], ["yes"]),
        (Level, ["1", "9"], ["2", "LOW"]),
        (Colour, ["red"], ["TWO", "2"]),  # Pydantic doesn't read 2 from the key "2"
        (datetime.date, ["2020-02-29"], ["2020-02-30"]),
        (uuid.UUID, [str(uuid.UUID(int=1))], ["1"]),
    ],
)
def test_keys_of_a_dict_are_those_that_the_type_reads(keys: Any, good: list[str], bad: list[str]) -> None:
    form = ReturnFormat.of(dict[keys, int])  # type: ignore[valid-type]
    assert form.constraint is not None
    assert enforcement_of(form.constraint).unenforced == ()
    schema = json.loads(str(form.constraint.json_schema))
    for key in good:
        assert not list(validator_of(schema).iter_errors({key: 1}))
        assert form.parse(json.dumps({key: 1})).value == [(key, 1)]
    for key in bad:
        assert list(validator_of(schema).iter_errors({key: 1}))


def test_an_example_is_written_as_the_model_writes_it() -> None:
    form = ReturnFormat.of(Units)
    _, answer = examples_of([("How long?", Units.model_validate(UNITS))], form.write)
    assert json.loads(str(answer.content[0])) == UNITS


def test_json_within_json_is_written_as_text_again() -> None:
    form = ReturnFormat.of(create_model("Within", a=(PydanticJson[list[int]], ...), b=(Base64Bytes, ...)))
    text = '{"a":"[1,2]","b":"YWI="}'
    assert form.write(form.python_value(text)) == text


def test_fields_that_the_schema_allows_besides_are_kept_or_refused() -> None:
    free = ReturnFormat.of(create_model("Free", __config__=ConfigDict(extra="allow"), a=(int, ...)))
    assert json.loads(free.parse('{"a": 1, "b": 2}').value) == {"a": 1, "b": 2}
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert (
        json.loads(ReturnFormat.of({**schema, "additionalProperties": True}).parse('{"a": 1, "b": 2}').value)["b"] == 2
    )
    error = ReturnFormat.of(schema).parse('{"a": 1, "b": 2}').error
    assert error is not None
    assert "no field 'b'" in error.message


@pytest.mark.parametrize("value", ["1e999", "NaN", "-Infinity"])
def test_a_number_that_json_has_not_is_an_error(value: str) -> None:
    parsed = ReturnFormat.of(float | list[float]).parse(value)
    assert parsed.value is None
    assert parsed.error is not None


def test_texts_in_parts_that_are_json_text_are_json_too() -> None:
    form = ReturnFormat.of(int | str)
    assert [form.parse(text).value for text in ("5", '"5"')] == ["5", '"5"']


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (create_model("P", a=(int, Field(validation_alias=AliasPath("q", 0)))), "Give it a name too"),
        (create_model("B", __config__=ConfigDict(val_json_bytes="base64"), a=(bytes, Field(max_length=3))), "base64"),
        (create_model("L", a=(Literal[Colour.RED], ...)), "from JSON"),
        (create_model("D", a=(enum.Enum("Day", {"A": datetime.date(2020, 1, 1)}), ...)), "from JSON"),
        (create_model("T", a=(enum.Enum("Pair", {"A": (1, 2)}), ...)), "from JSON"),
        (create_model("Y", a=(Literal[b"x"], ...)), "from JSON"),
        (create_model("N", a=(enum.Enum, ...)), "no members"),
        (create_model("C", a=(type[int], ...)), "classes"),
        (dict[tuple[int, int], int], "keys of type array"),
        (dict[Literal[1, 2], int], "only strings"),
    ],
)
def test_types_whose_values_no_model_can_write_are_refused(kind: Any, says: str) -> None:
    with pytest.raises(SchemaError, match=says):
        ReturnFormat.of(kind)


def test_a_value_that_its_validator_changed_is_the_changed_one() -> None:
    from pydantic import AfterValidator

    form = ReturnFormat.of(create_model("V", a=(Annotated[str, AfterValidator(str.upper)], ...), b=(int, 7)))
    assert form.parse('{"a": "x"}').value == {"a": "X", "b": 7}
    assert pa.array([form.parse('{"a": "x"}').value], type=form.dtype.to_arrow_dtype()).to_pylist() == [
        {"a": "X", "b": 7}
    ]
