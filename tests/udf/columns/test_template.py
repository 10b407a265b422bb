"""Templates: what they are filled with, and what their mistakes are told as."""

from __future__ import annotations

import datetime as dt
from typing import Any

import daft
import numpy as np
import pyarrow as pa
import pytest
from daft import DataType, Series

from daft_vllm.errors import OptionError
from daft_vllm.job import count_prompts, prompt_of
from daft_vllm.udf.columns.template import template

TABLE = {
    "q": ["w"],
    "Title": ["t"],
    "a b": ["x"],
    "a.b": ["y"],
    "a!bc": ["1"],
    "at: noon": ["2"],
    "n": [1.5],
    "list": [[1, None]],
    "struct": [{"k": "é", "l": [2]}],
    "day": [dt.date(2020, 1, 2)],
    "long": Series.from_arrow(pa.array([dt.timedelta(days=1)])),
    "map": Series.from_arrow(pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))),
    "bytes": [b"x\xff"],
    "image": Series.from_pylist([np.zeros((2, 2, 3), np.uint8)], dtype=DataType.image("RGB")),
    "images": [{"bytes": b"x", "path": "y"}],
}
DF = daft.from_pydict(TABLE)


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("{a b}{a.b}{a!bc}{at: noon}", "xy12"),
        ("{n} {list} {struct}", '1.5 [1,null] {"k":"é","l":[2]}'),
        ("{day} {long} {map}", '2020-01-02 PT86400S {"a":1}'),
        ('{{"a": {q}}} {{{q}}}', '{"a": w} {w}'),
        ("${q}\n{q}", "$w\nw"),
    ],
)
def test_what_a_field_may_be(text: str, filled: str) -> None:
    asked = prompt_of(DF, text)
    assert DF.select(asked.messages.alias("p")).to_pydict()["p"] == [filled]  # type: ignore[union-attr]
    assert count_prompts(DF, asked) == (1, 0, 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{title}", "{title} is not a column. Did you mean 'Title'?"),
        ("{Q}", "Did you mean 'q'?"),
        ("{ q }", "is not a column: write {q}."),
        ("{q.x}", "is not a column: write {q}. A field has no parts and no format."),
        ("{q[0]}", "write {q}. A field has no parts"),
        ("{q!r}", "write {q}. A field has no parts"),
        ("{q:>10}", "write {q}. A field has no parts"),
        ("{{q}}", "names no column: write {q}, in single braces."),
        ("say $q", "names no column: write {q}."),
        ("{q", "a brace without its partner, at '{q'. If the braces are meant as text, double them"),
        ("q}", "a brace without its partner, at '}'"),
        (
            '{"a": {q}}',
            """partner, at '{"a": {q}}'. If the braces are meant as text, double them""",
        ),
        ('{"a": 1} {q}', """{"a": 1} is not a column. Columns: """),
        ("{bytes}", "{bytes} is of type Binary, which is no text. Images go beside the prompt (--images bytes, or"),
        ("{image}", "which is no text"),
        ("{images}", "which is no text"),
    ],
)
def test_what_a_field_cannot_be(text: str, message: str) -> None:
    for make in (template, prompt_of):
        made: Any = make
        with pytest.raises(OptionError) as caught:
            made(*((text, DF) if make is template else (DF, text)))
        assert message in str(caught.value)


def test_a_long_prompt_is_not_repeated_in_an_error() -> None:
    with pytest.raises(OptionError) as caught:
        template("word " * 500 + "{", DF)
    assert len(str(caught.value)) < 500
