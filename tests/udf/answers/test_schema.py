"""Column types of JSON schemas, and values shaped for them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from daft import DataType, Series
from pydantic import BaseModel

from daft_vllm.engine.constraints.references import References
from daft_vllm.errors import SchemaError
from daft_vllm.udf.answers.return_format import ReturnFormat
from daft_vllm.udf.answers.schema import column_type
from daft_vllm.udf.answers.values import column_converter

TEXT, INT, FLOAT = DataType.string(), DataType.int64(), DataType.float64()


@pytest.mark.parametrize(
    ("schema", "dtype"),
    [
        ({"type": "integer"}, INT),
        ({"type": "number"}, FLOAT),
        ({"type": ["string", "null"]}, TEXT),
        ({"type": ["integer", "number"]}, FLOAT),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, INT),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, TEXT),
        ({"enum": ["a", None]}, TEXT),
        ({"enum": [1, 2]}, INT),
        ({"const": True}, DataType.bool()),
        ({"type": "array", "items": {"type": "number"}}, DataType.list(FLOAT)),
        ({"type": "array", "prefixItems": [{"type": "number"}, {}], "items": False},
         DataType.struct({"_0": FLOAT, "_1": TEXT})),
        ({"type": "array", "prefixItems": [{"type": "number"}]}, TEXT),
        ({"type": "object"}, TEXT),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, DataType.map(TEXT, INT)),
        ({"type": "object", "additionalProperties": True}, TEXT),
        ({"type": "string", "format": "date"}, DataType.date()),
        ({"type": "string", "format": "date-time"}, DataType.timestamp("us", "UTC")),
        ({"allOf": [{"$ref": "#/$defs/x"}], "$defs": {"x": {"type": "boolean"}}}, DataType.bool()),
        ({"type": "object", "properties": {"a": {}, "b": {"type": "null"}}},
         DataType.struct({"a": TEXT, "b": DataType.null()})),
        (
            {
                "$ref": "#/$defs/node",
                "$defs": {
                    "node": {
                        "type": "object",
                        "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}},
                    }
                },
            },
            DataType.struct({"v": INT, "next": TEXT}),
        ),
    ],
)  # fmt: skip
def test_column_types(schema: dict[str, Any], dtype: DataType) -> None:
    assert column_type(schema) == dtype


@pytest.mark.parametrize("reference", ["http://elsewhere/x.json", "#/nowhere", "#/a/7"])
def test_references_that_lead_nowhere(reference: str) -> None:
    with pytest.raises(SchemaError, match="refers to"):
        References({"a": [1]}).target(reference)


def test_values_are_shaped_for_their_column() -> None:
    dtype = DataType.struct({"a": TEXT, "b": DataType.list(FLOAT), "c": INT})
    convert = column_converter(dtype, ["/a"])
    value = convert({"a": {"k": [1]}, "b": [1, 2.5, None], "c": 3.0})
    assert value == {"a": '{"k": [1]}', "b": [1.0, 2.5, None], "c": 3}
    for wrong in ({"a": 1, "extra": 1}, {"c": True}, {"b": 1}, {"b": ["x"]}, {"c": 2.5}, [1, 2, 3, 4], "text"):
        with pytest.raises((TypeError, ValueError)):
            convert(wrong)
    series = Series.from_arrow(pa.array([value, None], type=dtype.to_arrow_dtype()), dtype=dtype)
    assert series.to_pylist() == [value, None]


class Inner(BaseModel):
    x: int


class Outer(BaseModel):
    inner: Inner
    items: list[Inner] = []
    note: str | None = None


def test_parse_accounts_for_every_answer() -> None:
    form = ReturnFormat.of(Outer)
    assert form.parse('{"inner":{"x":1}}').value == {"inner": {"x": 1}, "items": [], "note": None}
    for bad, where in (('{"inner":{"x":"no"}}', "inner.x"), ("{}", "inner"), ("not json", "the whole")):
        parsed = form.parse(bad)
        assert parsed.value is None
        assert parsed.error is not None
        assert parsed.error.code == "invalid_output"
        assert where in parsed.error.message
    by_schema = ReturnFormat.of({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
    assert by_schema.parse('{"n": 3}').value == {"n": 3}
    assert by_schema.parse('{"n": "3"}').error.code == "invalid_output"  # type: ignore[union-attr]
    assert by_schema.parse('{"n": ').error.code == "invalid_output"  # type: ignore[union-attr]
    assert ReturnFormat.of(["a"]).parse("b").error.code == "invalid_output"  # type: ignore[union-attr]
    assert ReturnFormat.of(None).parse("anything").value == "anything"


def test_local_models_survive_dafts_pickle() -> None:
    """A model defined in the user's script is sent to the worker by value."""
    from daft import pickle

    class Local(BaseModel):
        n: int

    form = pickle.loads(pickle.dumps(ReturnFormat.of(Local)))
    assert form.parse('{"n": 5}').value == {"n": 5}


def test_an_integer_that_no_column_holds_is_an_error_of_its_row() -> None:
    form = ReturnFormat.of({"type": "object", "properties": {"n": {"type": "integer"}}})
    assert form.parse('{"n": 9223372036854775807}').value == {"n": 2**63 - 1}
    for text in ('{"n": 9223372036854775808}', '{"n": -1e300}'):
        parsed = form.parse(text)
        assert parsed.value is None
        assert parsed.error is not None
        assert "64 bits" in str(parsed.error)
