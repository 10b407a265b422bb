"""Patterns take time in proportion to the text, or are searched where they can be stopped. Their meaning is kept."""

from __future__ import annotations

import gc
import pickle
import re

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daft_vllm.engine.constraints.limits import killable
from daft_vllm.engine.constraints.limits.killable import CallFailed
from daft_vllm.engine.constraints.limits.matcher import UndecidedMatch, is_linear, matcher

pytestmark = pytest.mark.timeout(120)

ATOMS = st.sampled_from(
    [
        *("a", "b", "é", "٣", r"\n", r"\.", ".", r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", "[a-c]", "[^a]", r"[\w-]"),
        *(r"[^\d\s]", r"[\W\d]", "[é-ü]", r"[\x1c-\x20]", r"[^\n]", "^", "$", r"\A", r"\Z", r"\b", "[]a]", r"[\]^-]"),
        *("(?s:.)", "(?i:a)", "(?=a)", "(?!b)", "(?<=a)", "(?P<n>a)", r"(?:\\)", "🙂", "[🙂-🙄]", r"\u2028", "#", " "),
    ]
)
COUNTS = st.sampled_from(["", "", "", "?", "*", "+", "{2}", "{0,2}", "{1,}", "*?", "+?", "{0}", "*+"])
TEXTS = st.lists(st.sampled_from([*"ab\n é٣.\x1c\x85\u2028\u00a0🙂x1_-\\#Aü\x00"]), max_size=6).map("".join)


@st.composite
def _patterns(draw: st.DrawFn) -> str:
    def part(depth: int) -> str:
        pieces = []
        for _ in range(draw(st.integers(0, 3))):
            atom = f"({part(depth - 1)})" if depth and draw(st.booleans()) else draw(ATOMS)
            pieces.append(atom + draw(COUNTS))
        text = "".join(pieces)
        return f"{text}|{part(depth - 1)}" if depth and draw(st.booleans()) else text

    return draw(st.sampled_from(["", "", "", "(?s)", "(?m)", "(?x)", "(?a)", "(?i)"])) + part(2)


@settings(max_examples=1500, deadline=None, suppress_health_check=list(HealthCheck))
@given(_patterns(), st.lists(TEXTS, min_size=4, max_size=12), st.booleans())
def test_what_matches_is_the_same(pattern: str, texts: list[str], whole: bool) -> None:
    try:
        expected = re.compile(pattern)
    except (re.error, OverflowError):
        return
    if not is_linear(pattern, whole=whole):
        return  # Python's own engine searches it, in another process
    check = matcher(pattern, whole=whole)
    for text in texts:
        found = expected.fullmatch(text) if whole else expected.search(text)
        assert check(text) == (found is not None), (pattern, text)


@pytest.mark.parametrize(
    "pattern",
    [
        "^a$",
        r"^\d{3}$",
        r"\s",
        r"\S+@\S+",
        r"^\w+\Z",
        "^[^\\W_]+$",
        "a.b",
        "^(?:a|b)*$",
        "^$",
        "",
        r"^[\x1c-\x1f]$",
        "x{0,2000}",
    ],
)
def test_usual_patterns_need_no_other_process(pattern: str) -> None:
    assert is_linear(pattern)
    check = matcher(pattern)
    for text in (
        "a",
        "a\n",
        "a\n\n",
        "123",
        "١٢٣",
        "\x1c",
        "a\u2028b",
        "é",
        "_",
        "",
        "\n",
        "a@b",
        "½",
        "aⅷ",
        "\U0001d7d9",
    ):
        assert check(text) == (re.search(pattern, text) is not None), text


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|a)*$", "^(a*)*b$", r"^(\w+\s?)*$", "^(a|b|ab)*c$", r"(x+x+)+y"])
def test_time_does_not_double(pattern: str) -> None:
    assert is_linear(pattern)
    for text in ("a" * 50_000 + "!", "ab" * 20_000 + "!", "x" * 20_000 + "!"):
        assert not matcher(pattern)(text)
        assert not matcher(pattern, whole=True)(text)


@pytest.mark.parametrize("pattern", ["^(a+)+(?!b)$", r"^(a+)+\1$", r"^\b(\w+\w*)*$", "(?i)^(a+)+$"])
def test_what_only_python_reads_is_stopped(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(killable, "SECONDS", 1.0)
    assert not is_linear(pattern)
    check = matcher(pattern)
    assert check("aa")
    with pytest.raises(UndecidedMatch, match="more than 1 seconds"):
        check("a" * 60 + "!")
    assert check("aaaa")  # by another process
    assert not check("!")


def test_half_of_a_surrogate_pair_is_matched_as_before() -> None:
    assert matcher("^.$")("\ud800")
    assert not matcher("a")("\udfff")


def _fill(number: int) -> int:
    return len(bytearray(number))


def test_memory_of_a_call_is_limited() -> None:
    function = killable.KillableFunction(pickle.dumps(_fill))
    assert function(1000) == 1000
    with pytest.raises(CallFailed, match="MemoryError"):
        function(killable.MEMORY * 2)
    assert function(10) == 10


def test_a_process_ends_with_its_function() -> None:
    before = set(psutil.Process().children())
    function = killable.KillableFunction(pickle.dumps(_fill))
    assert function(10) == 10
    (child,) = set(psutil.Process().children()) - before
    del function
    gc.collect()
    assert not child.is_running()
