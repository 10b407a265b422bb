"""Parts of a prompt: what is taken for one."""

from __future__ import annotations

from typing import Any

import pytest

from daft_vllm.errors import OptionError
from daft_vllm.udf.columns.parts import parts_of


@pytest.mark.parametrize(
    ("messages", "hint"),
    [
        ("Is it positive? {review}", "daft.functions.format('Is it positive? {}', col('review'))."),
        ("{a}: {b}", "daft.functions.format('{}: {}', col('a'), col('b'))."),
        ("review", "Write lit('review') for text, col('review') for a column."),
        ('{"a": {b}}', "Write lit("),
        ("{{}} {b}", "Write lit("),
        ("{", "Write lit('{')"),
        ("{}", "Write lit('{}')"),
        (["What is {review}?"], "daft.functions.format('What is {}?', col('review'))."),
    ],
)
def test_a_text_in_the_place_of_a_column(messages: Any, hint: str) -> None:
    with pytest.raises(OptionError) as raised:
        parts_of(messages)
    assert hint in str(raised.value)
    if isinstance(messages, str):
        assert str(raised.value).startswith("prompt() takes a column, not a text. ")
