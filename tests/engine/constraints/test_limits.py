"""Where llguidance would give up while an answer is written, the format is refused before the load."""

from __future__ import annotations

import json
import math
import random
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.guided import grammars
from daft_vllm.engine import Constraint
from daft_vllm.engine.constraints.enforcement import enforcement_of
from daft_vllm.engine.constraints.libraries import trial
from daft_vllm.errors import SchemaError

pytest.importorskip("xgrammar")
WORDS = {"type": "string", "pattern": r"^(?:\S+\s+){0,99}\S+$", "maxLength": 5000}
LONGER = {"type": "string", "pattern": r"^(?:\S+\s+){0,499}\S+$", "maxLength": 20000}
BODIES = st.sampled_from([r"\S+\s+", r"[a-z]{0,30} ?", r"\w+,\s*", r"[^,]*,", r"(?:ab|a.c)\s?", r"\d{1,9}\.?"])


@st.composite
def _schemas(draw: st.DrawFn) -> dict[str, Any]:
    """Return the schema of a string with a large bounded repetition, mostly beside a length, alone or in an object."""
    most = draw(st.sampled_from([5, 20, 99, 200, 500]))
    body, end = draw(BODIES), draw(st.sampled_from(["", "x", r"\S+"]))
    text: dict[str, Any] = {"type": "string", "pattern": f"^(?:{body}){{0,{most}}}{end}$"}
    if draw(st.sampled_from([True, True, False])):
        text["maxLength"] = draw(st.sampled_from([50, 300, 5000, 20000]))
    wrap = draw(st.sampled_from([False, True]))
    return {"type": "object", "properties": {"a": text, "b": text}, "required": ["a", "b"]} if wrap else text


def _enforced(schema: Any) -> bool:
    """Whether a schema is taken. If it is, random texts of its grammar are valid."""
    enforcement_of.cache_clear()
    try:
        one = enforcement_of(Constraint(json_schema=json.dumps(schema)))
    except SchemaError:
        return False
    check = re.compile(_text_of(schema)["pattern"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grammars, "_LONGEST", 400)
        for text in (write() for write in [grammars.writer(one, random.Random(5))] * 4):
            for value in _values(text):
                assert check.search(value), (schema, text)
                assert len(value) <= _text_of(schema).get("maxLength", math.inf)
    return True


def _text_of(schema: Any) -> Any:
    return schema["properties"]["a"] if "properties" in schema else schema


def _values(text: str | None) -> list[str]:
    value = None if text is None else json.loads(text)
    return [] if value is None else [value] if isinstance(value, str) else list(value.values())


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(_schemas())
def test_a_large_repetition_is_refused_or_never_wrong(schema: Any) -> None:
    _enforced(schema)


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(schema=_schemas(), divisor=st.sampled_from([10, 100, 2000]))
def test_with_lower_limits_more_is_refused_and_nothing_is_wrong(schema: Any, divisor: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial, "LIMITS", {name: value // divisor for name, value in trial.LIMITS.items()})
        _enforced(schema)
    enforcement_of.cache_clear()


def test_limits_decide_what_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _enforced(WORDS)  # llguidance's own limits are too low for it
    assert not _enforced(LONGER)
    monkeypatch.setattr(trial, "LIMITS", {"step_lexer_fuel": 200_000})
    assert not _enforced(WORDS)
    enforcement_of.cache_clear()


def test_the_message_names_the_place() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}, "words": LONGER}, "required": ["n", "words"]}
    with pytest.raises(
        SchemaError, match=r"/properties/words: pattern: llguidance can't write a random answer .* Use smaller counts"
    ):
        enforcement_of(Constraint(json_schema=json.dumps(schema)))


def test_a_library_that_cannot_keep_up_is_not_taken() -> None:
    """xgrammar needs seconds for a letter of a word, because it can be cut in so many ways."""
    schema = json.dumps({"type": "string", "pattern": "^(?:[a-z]{0,30} ?){0,20}x$"})
    with pytest.raises(SchemaError, match="can't keep up"):
        enforcement_of(Constraint(json_schema=schema, backend="xgrammar"))
    assert enforcement_of(Constraint(json_schema=schema)).backend == "guidance"
