"""From cells to prompts: rows that are not asked."""

from __future__ import annotations

from typing import Any

import pytest
from daft import Series

from daft_vllm import Outcome
from daft_vllm.udf.columns.cells import CellReader
from daft_vllm.udf.columns.files import FileAccess
from daft_vllm.udf.columns.parts import PartKind

BLANKS = ["", " ", "\n\t", "\u00a0\u2003"]


def codes(columns: list[list[Any]], kinds: list[PartKind], *, skip_blank: bool) -> list[str | None]:
    """Return the code of each row that is not sent; None for the others, and for null prompts of one column."""
    reader = CellReader(kinds, [], FileAccess(), lambda: False, skip_blank=skip_blank)
    prompts = list(reader.prompts([Series.from_pylist(cells) for cells in columns]))
    return [one.error.code if isinstance(one, Outcome) and one.error else None for one in prompts]


@pytest.mark.parametrize("skip_blank", [True, False])
def test_blank_texts_count_as_null_if_asked_for(skip_blank: bool) -> None:
    blank = "blank_prompt" if skip_blank else None
    texts = [*BLANKS, "?", None]
    assert codes([texts], ["auto"], skip_blank=skip_blank) == [blank] * 4 + [None, None]
    several = codes([["a"] * 6, texts], ["auto", "auto"], skip_blank=skip_blank)
    assert several == [blank] * 4 + [None, "null_prompt"]
    lists = codes([[["a", text] for text in texts]], ["auto"], skip_blank=skip_blank)
    assert lists == [blank] * 4 + [None, "null_prompt"]
    talks = [[{"role": "user", "content": "a"}, {"role": "user", "content": text}] for text in texts[:5]]
    assert codes([talks], ["auto"], skip_blank=skip_blank) == [blank] * 4 + [None]
