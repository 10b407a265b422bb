"""Guesses with a real model: the same answers in fewer steps."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from transformers import AutoTokenizer

from daft_vllm import Constraint, EngineConfig, OfflineEngine, Outcome, Request, SamplingOptions
from daft_vllm.engine.drafts.start import draft_args
from daft_vllm.errors import OptionError
from daft_vllm.udf.worker.engines import close_engines
from tests.conftest import ENGINE_ARGS

FIELDS = {
    "product_category": {"enum": ["electronics", "clothing", "groceries", "furniture"]},
    "is_recommended": {"type": "boolean"},
    "overall_sentiment": {"enum": ["positive", "negative", "neutral"]},
    "rating_of_five": {"type": "integer", "minimum": 1, "maximum": 5},
    "customer_name": {"type": "string", "maxLength": 12},
}
SCHEMA = {"type": "object", "properties": FIELDS, "required": [*FIELDS], "additionalProperties": False}
THINGS = ["chair", "lamp", "phone", "shirt", "apple", "table", "bread", "radio", "jacket", "stool", "soup", "mouse"]
LONG = SamplingOptions(max_tokens=150)


pytestmark = pytest.mark.other_engine


@pytest.fixture(scope="module")
def engine(smollm2: str) -> Iterator[OfflineEngine]:
    """An engine that guesses."""
    close_engines()
    with OfflineEngine(EngineConfig(smollm2, dict(ENGINE_ARGS), draft=True)) as opened:
        yield opened


def ask(engine: OfflineEngine, requests: list[Request]) -> tuple[list[Outcome], dict[str, float]]:
    before = engine.stats()
    outcomes = engine.run(requests, dedupe=False)
    return outcomes, engine.stats().since(before).as_dict()


def forms(constraint: Constraint | None, rows: int, *, draft: bool, sampling: SamplingOptions = LONG) -> list[Request]:
    return [
        Request(
            f"{THINGS[i % 12].title()} {i}: I bought it in May. Describe it as JSON.",
            constraint=constraint,
            sampling=sampling,
            draft=draft,
        )
        for i in range(rows)
    ]


@pytest.mark.parametrize("backend", ["xgrammar", "guidance"])
def test_the_same_answers_in_fewer_steps(engine: OfflineEngine, backend: str) -> None:
    constraint = Constraint(json_schema=json.dumps(SCHEMA), backend=backend)
    plain, without = ask(engine, forms(constraint, 24, draft=False))
    guessed, with_guesses = ask(engine, forms(constraint, 24, draft=True))
    again, learned = ask(engine, forms(constraint, 24, draft=True))
    assert [one.text for one in guessed] == [one.text for one in plain] == [one.text for one in again]
    assert all(json.loads(one.text) for one in plain)
    assert without["drafted_tokens"] == without["accepted_tokens"] == 0
    assert with_guesses["completion_tokens"] == without["completion_tokens"] == learned["completion_tokens"]
    assert learned["steps"] < 0.6 * without["steps"]
    assert learned["accepted_tokens"] > 0.8 * learned["drafted_tokens"] > 0.3 * learned["completion_tokens"]


def test_rows_with_options_that_guesses_do_not_have_keep_them(engine: OfflineEngine, smollm2: str) -> None:
    """Such rows run beside rows with guesses, in the same steps."""
    constraint = Constraint(json_schema=json.dumps(SCHEMA))
    ask(engine, forms(constraint, 12, draft=True))  # known by now
    word = AutoTokenizer.from_pretrained(smollm2).encode(" banana", add_special_tokens=False)[0]
    options = [
        SamplingOptions(max_tokens=8, logit_bias={word: 100.0}),
        SamplingOptions(max_tokens=8, temperature=1.0, seed=7, min_p=0.2),
        SamplingOptions(max_tokens=8, temperature=1.0, seed=7),
        SamplingOptions(max_tokens=12, min_tokens=12),
        SamplingOptions(max_tokens=8, repetition_penalty=1.5),
        SamplingOptions(max_tokens=8, bad_words=["the"]),
    ]
    asked = [Request("What is this?", sampling=one) for one in options]
    alone, _ = ask(engine, asked)
    beside, stats = ask(engine, [*asked, *forms(constraint, 12, draft=True)])
    assert stats["accepted_tokens"] > 0
    assert [one.text for one in beside[: len(asked)]] == [one.text for one in alone]
    assert set(beside[0].text.split()) == {"banana"}
    assert beside[3].completion_tokens == 12


def test_rows_that_draw_have_valid_answers_of_the_same_kind(engine: OfflineEngine) -> None:
    constraint = Constraint(json_schema=json.dumps(SCHEMA))
    sampling = SamplingOptions(max_tokens=150, temperature=1.0)
    drawn, stats = ask(engine, forms(constraint, 24, draft=True, sampling=sampling))
    assert all(json.loads(one.text)["is_recommended"] in (True, False) for one in drawn)
    assert stats["accepted_tokens"] > 0


def test_limits_and_ends_are_kept(engine: OfflineEngine) -> None:
    constraint = Constraint(json_schema=json.dumps(SCHEMA))
    for limit in (1, 2, 7, 30):
        sampling = SamplingOptions(max_tokens=limit)
        cut, _ = ask(engine, forms(constraint, 6, draft=True, sampling=sampling))
        plain, _ = ask(engine, forms(constraint, 6, draft=False, sampling=sampling))
        assert [(one.text, one.completion_tokens, one.finish_reason) for one in cut] == [
            (one.text, one.completion_tokens, one.finish_reason) for one in plain
        ]
    stopped = SamplingOptions(max_tokens=150, stop=["is_recommended"])
    cut, _ = ask(engine, forms(constraint, 6, draft=True, sampling=stopped))
    plain, _ = ask(engine, forms(constraint, 6, draft=False, sampling=stopped))
    assert [(one.text, one.finish_reason) for one in cut] == [(one.text, one.finish_reason) for one in plain]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"gpus": 1}, "gpus"),
        ({"reproducible": True}, "reproducible"),
        ({"adapters": {"a": "owner/name"}}, "adapters"),
        ({"engine_args": {"tensor_parallel_size": 2}}, "tensor_parallel_size"),
        ({"engine_args": {"speculative_config": {"method": "ngram"}}}, "speculative_config"),
    ],
)
def test_engines_that_can_not_guess_say_so(options: dict[str, Any], named: str) -> None:
    with pytest.raises(OptionError, match=f"tokens can't be guessed with .*{named}"):
        EngineConfig("m", **options, draft=True)


def test_what_vllm_is_told() -> None:
    assert draft_args(EngineConfig("m"), ()) == {}
    assert draft_args(EngineConfig("m", draft=True), ("drafts",)) == {}
    assert draft_args(EngineConfig("m", draft=True), ())


@pytest.mark.slow
def test_rows_that_draw_have_the_same_distribution(engine: OfflineEngine) -> None:
    """Each label comes as often with guesses as without, within four standard deviations."""
    names = ["overall_sentiment", "is_recommended"]
    schema = {**SCHEMA, "properties": {name: FIELDS[name] for name in names}, "required": names}
    request = Request(
        "A chair. Describe it as JSON.",
        constraint=Constraint(json_schema=json.dumps(schema)),
        sampling=SamplingOptions(max_tokens=60, temperature=1.0),
    )
    rows, together = 240, 16  # few rows a step: guesses needn't be sure
    counts = []
    for draft in (False, True):
        found: list[Outcome] = []
        drafted = accepted = 0.0
        for _ in range(rows // together):
            outcomes, stats = ask(engine, [replace(request, draft=draft)] * together)
            found += outcomes
            drafted, accepted = drafted + stats["drafted_tokens"], accepted + stats["accepted_tokens"]
        answers = [json.loads(one.text) for one in found]
        counts.append({name: Counter(str(answer[name]) for answer in answers) for name in names})
    assert 0.1 * sum(one.completion_tokens for one in found) < accepted < drafted
    for name, without in counts[0].items():
        for label in without | counts[1][name]:
            share = max(without[label], counts[1][name][label]) / rows
            allowed = 4 * math.sqrt(2 * share * (1 - share) / rows) + 2 / rows
            assert abs(without[label] - counts[1][name][label]) / rows <= allowed, (name, label, counts)
