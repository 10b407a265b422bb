"""Sampling options, formats and tools: the same answers from both of vLLM's runners."""

from __future__ import annotations

import contextlib
from typing import Any, Literal

import daft
import pytest
from daft import col
from pydantic import BaseModel, Field
from transformers import AutoTokenizer

from daft_vllm import SamplingOptions, prompt
from daft_vllm.engine.setup.sampling_rules import check_sampling
from daft_vllm.errors import OptionError
from tests.gpu_runner import MARKS
from tests.gpu_runner.runners import ARGS, FIXED, of_both, open_engine, told
from tests.udf.answers.test_tools import EXAMPLES, TEMPLATE, add, weather

pytestmark = MARKS
QUESTIONS = ["Say hi", "What is 2+2?", "Name a colour", "Is water wet?"]


class Number(BaseModel):
    """xgrammar takes it."""

    n: Literal[1, 2]


class Word(BaseModel):
    """llguidance takes the pattern."""

    word: str = Field(pattern="^[ab]{1,3}$", max_length=2)


# Each is greedy, or leaves no choice, so both runners must give the same tokens. top_k and top_p are missing: Triton's
# interpreter can't run vLLM's kernel for them ("'int' object has no attribute 'to'", Triton 3.7).
SAME: dict[str, dict[str, Any]] = {
    "greedy": {},
    "min_p": {"temperature": 1.5, "min_p": 1.0},
    "repetition_penalty": {"repetition_penalty": 1.5},
    "presence_penalty": {"presence_penalty": 1.5, "max_tokens": 8},
    "frequency_penalty": {"frequency_penalty": 1.5, "max_tokens": 8},
    "logit_bias": {"logit_bias": {9906: 100.0}},
    "allowed_token_ids": {"allowed_token_ids": list(range(500, 1500, 2))},
    "bad_words": {"bad_words": ["Hello", "The", "I"]},
    "min_tokens": {"min_tokens": 4, "allowed_token_ids": [2, 500, 501]},
    "stop": {"stop": ["e"]},
    "stop in the output": {"stop": ["e"], "include_stop_str_in_output": True},
    "stop_token_ids": {"stop_token_ids": list(range(0, 49_000, 3))},
    "together": {
        "repetition_penalty": 1.3,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
        "logit_bias": {500: 30.0, 501: 30.5, 502: 31.0},
        "allowed_token_ids": [2, 500, 501, 502, 503],
        "bad_words": ["Hello"],
        "min_tokens": 3,
        "max_tokens": 6,
    },
    "xgrammar": {"return_format": Number, "max_tokens": 16},
    "guidance": {"return_format": Word, "max_tokens": 16},
    "choices": {"return_format": ["blue", "yes", "four"]},
    "a format with bias and penalty": {
        "return_format": Number,
        "max_tokens": 16,
        "logit_bias": {34: 50.0},
        "repetition_penalty": 1.5,
    },
    "a format that ends before min_tokens": {"return_format": Number, "max_tokens": 16, "min_tokens": 14},
    "nothing left of a format": {"return_format": Number, "max_tokens": 16, "bad_words": ['"n', '":', '"', "n"]},
    "a format that is cut off": {"return_format": Number, "max_tokens": 3},
    "a tool that is asked for": {"tools": [add, weather], "tool_choice": "weather", "max_tokens": 40},
    "tools of the model's choice": {
        "tools": [add, weather],
        "tool_parser": "hermes",
        "examples": EXAMPLES,
        "max_tokens": 40,
    },
    "by row": {
        "temperature": col("heat"),
        "min_p": 1.0,
        "allowed_token_ids": col("allowed"),
        "repetition_penalty": col("penalty"),
        "min_tokens": col("least"),
    },
}
# As many tokens as V2 takes, and more.
MOST: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "most allowed_token_ids": (
        {"allowed_token_ids": list(range(500, 1524))},
        {"allowed_token_ids": list(range(500, 1525))},
    ),
    "most logit_bias": (
        {"logit_bias": dict.fromkeys(range(500, 1524), 30.0)},
        {"logit_bias": dict.fromkeys(range(500, 1525), 30.0)},
    ),
    "most bad_words": (
        {"bad_words": ["Hello", " ".join(["x"] * 500)]},
        {"bad_words": ["Hello", " ".join(["x"] * 513)]},
    ),
    "most stop_token_ids beside min_tokens": (
        {"stop_token_ids": list(range(400, 527)), "min_tokens": 3, "allowed_token_ids": list(range(400, 700))},
        {"stop_token_ids": list(range(400, 528)), "min_tokens": 3},
    ),
}
SAME_AS_GREEDY = {"greedy", "min_p"}
RANDOM: dict[str, dict[str, Any]] = {
    "seed": {"seed": 7},
    "the same seed": {"seed": 7},
    "the same seed, in another order": {"seed": 7, "rows": [2, 0, 3, 1]},
    "another seed": {"seed": 8},
    "seeds by row": {"seed": col("seed")},
    "seeds by row, in another order": {"seed": col("seed"), "rows": [3, 2, 1, 0]},
}


def answered(model: str, rows: list[int] | None = None, **options: Any) -> list[dict[str, Any]]:
    """Return the details of each question, in their order in ``QUESTIONS``, asked in the order of ``rows``."""
    order = rows or list(range(len(QUESTIONS)))
    columns: dict[str, list[Any]] = {
        "id": list(range(len(QUESTIONS))),
        "q": QUESTIONS,
        "heat": [0.0, 1.0, 0.5, 2.0],
        "allowed": [[500, 502, 504], [700, 900], None, [1000, 1001]],
        "penalty": [1.0, 1.2, 1.4, 2.0],
        "least": [0, 2, 4, 3],
        "seed": [1, -5, 2**62, 1],
    }
    df = daft.from_pydict({name: [cells[i] for i in order] for name, cells in columns.items()})
    fixed = {"model": model, "engine_args": {**ARGS, "max_model_len": 768}, "chat_template": TEMPLATE, "max_tokens": 4}
    found = df.select("id", prompt(col("q"), **(FIXED | fixed | options)).alias("a")).to_pylist()
    assert [row["id"] for row in found] == order
    return told(sorted(found, key=lambda row: row["id"]))


def counted(model: str) -> dict[str, Any]:
    """Return what is counted of rows with a long beginning in common, of which two are equal, asked twice."""
    before = open_engine().stats()
    start = "The same beginning, which takes several blocks of the cache. " * 30
    df = daft.from_pydict({"q": [f"{start} Question {i}?" for i in (0, 1, 2, 2)]})
    options = {"model": model, "engine_args": {**ARGS, "max_model_len": 768}, "chat_template": TEMPLATE}
    found = {}
    for name, dedupe in (("first", True), ("again", True), ("again, computed", False)):
        asked = prompt(col("q"), **FIXED, **options, max_tokens=2, dedupe=dedupe)
        found[name] = told(df.select(asked.alias("a")).to_pylist())
    stats = open_engine().stats()
    stats.check()
    names = ("done", "failed", "duplicates", "prompt_tokens", "cached_tokens", "computed_tokens", "optimal_tokens")
    return {**found, **{name: getattr(stats, name) - getattr(before, name) for name in names}}


@pytest.fixture(scope="module")
def found(smollm2: str) -> dict[str, dict[str, Any]]:
    """What both runners answer, by runner and case."""

    def ask() -> dict[str, Any]:
        answers: dict[str, Any] = {
            name: answered(smollm2, **({"temperature": 0.0} | options)) for name, options in SAME.items()
        }
        answers |= {name: answered(smollm2, **most) for name, (most, _) in MOST.items()}
        answers |= {
            name: answered(smollm2, **options, temperature=1.0, dedupe=False) for name, options in RANDOM.items()
        }
        return {**answers, "counts": counted(smollm2)}

    return of_both(ask)


@pytest.mark.parametrize("name", SAME)
def test_the_same_answers(found: dict[str, dict[str, Any]], name: str) -> None:
    assert found["V2"][name] == found["V1"][name]
    if name not in SAME_AS_GREEDY:
        assert texts(found["V2"][name]) != texts(found["V2"]["greedy"]), "the option has an effect"


@pytest.mark.parametrize("name", MOST)
def test_more_than_v2_takes_is_refused(found: dict[str, dict[str, Any]], smollm2: str, name: str) -> None:
    """Its core would die."""
    assert found["V2"][name] == found["V1"][name]
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    for options, most in zip(MOST[name], (True, False), strict=True):
        given = SamplingOptions.of(options).model_dump()
        with contextlib.nullcontext() if most else pytest.raises(OptionError, match="vLLM takes at most"):
            check_sampling(given, gpus=1, vocabulary=49152, tokenizer=tokenizer, ends=[tokenizer.eos_token_id])


def texts(rows: list[dict[str, Any]]) -> list[str | None]:
    return [row["text"] for row in rows]


def test_seeds(found: dict[str, dict[str, Any]]) -> None:
    """Each runner draws other random numbers, but the same ones again for the same seed, in any order."""
    for answers in found.values():
        drawn = {name: texts(answers[name]) for name in RANDOM}
        assert drawn["seed"] == drawn["the same seed"] == drawn["the same seed, in another order"]
        assert drawn["seed"] != drawn["another seed"]
        assert drawn["seeds by row"] == drawn["seeds by row, in another order"]
        assert drawn["seeds by row"] not in (drawn["seed"], drawn["another seed"])


def test_counts(found: dict[str, dict[str, Any]]) -> None:
    """Cached tokens, duplicates and the rest of the counters."""
    counts = found["V2"]["counts"]
    assert counts == found["V1"]["counts"]
    assert counts["duplicates"] == 2
    first, *others = counts["first"]
    assert first["cached_tokens"] == 0
    assert all(row["cached_tokens"] >= first["prompt_tokens"] // 2 for row in others)
    assert texts(counts["first"]) == texts(counts["again"]) == texts(counts["again, computed"])
