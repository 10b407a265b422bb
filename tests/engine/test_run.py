"""The engine with a real model: answers, errors as values, order, many callers."""

from __future__ import annotations

import json
import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from daft_vllm import Constraint, OfflineEngine, Outcome, Request, SamplingOptions
from daft_vllm.engine.requests.limits import Limits
from daft_vllm.engine.requests.prepared import Prepared, unpack_tokens
from daft_vllm.engine.requests.request import Truncation
from daft_vllm.engine.scheduling.prefix import optimal_prompt_tokens
from daft_vllm.engine.setup.preflight import check_constraint
from daft_vllm.errors import ModelError, OptionError, SchemaError

SHORT = SamplingOptions(max_tokens=12)


def test_answers_a_question(engine: OfflineEngine) -> None:
    (outcome,) = engine.run([Request("What is the capital of France?", sampling=SamplingOptions(max_tokens=24))])
    assert "Paris" in (outcome.text or "")
    assert outcome.finish_reason == "stop"
    assert outcome.error is None
    assert outcome.prompt_tokens > 20
    assert 0 < outcome.completion_tokens <= 24


def test_no_rows(engine: OfflineEngine) -> None:
    assert engine.run([]) == []


def test_bad_rows_among_good_ones(engine: OfflineEngine) -> None:
    requests = [Request(f"Say the number {i}.", sampling=SHORT) for i in range(12)]
    requests[3] = Request(None)
    requests[5] = Request("word " * 3000, sampling=SHORT)
    requests[7] = Request("", sampling=SHORT)
    requests[8] = Request("", sampling=SHORT, apply_chat_template=False)
    requests[9] = Request("a lone surrogate \ud800", sampling=SHORT)
    requests[10] = Request("hello", sampling=SamplingOptions(max_tokens=4, allowed_token_ids=[10**9]))
    outcomes = engine.run(requests)
    codes = {i: outcome.error.code for i, outcome in enumerate(outcomes) if outcome.error is not None}
    assert codes == {
        3: "null_prompt",
        5: "prompt_too_long",
        8: "empty_prompt",
        9: "invalid_prompt",
        10: "invalid_request",
    }, outcomes[10]
    assert all(outcome.text for i, outcome in enumerate(outcomes) if i not in codes)
    assert "truncate_prompt_tokens" in outcomes[5].error.message  # type: ignore[union-attr]
    engine.stats().check()


def test_rows_that_take_too_long_free_their_places(engine: OfflineEngine) -> None:
    """They would write for a while. A row beside them, without a limit, is answered."""
    long = SamplingOptions(max_tokens=900, ignore_eos=True, min_tokens=900)
    requests = [Request(f"Write a book, part {i}.", sampling=long) for i in range(2)]
    for limits, code in ((Limits(row_seconds=0.5), "timeout"), (Limits(deadline=time.time() + 1), "deadline")):
        late = engine.submit(requests, limits=limits)
        other = engine.submit([Request(f"Say {code}.", sampling=SHORT)])
        assert [one.error and one.error.code for one in late.result()] == [code, code]
        assert other.result()[0].text
    engine.stats().check()
    assert engine.stats().in_flight == 0


def test_order_and_identity_under_many_callers(engine: OfflineEngine) -> None:
    """Each caller gets its own rows back, in its own order, whatever else runs."""
    calls = [[Request(f"{c}-{i}", sampling=SHORT, system_message=None) for i in range(6)] for c in "abcd"]
    alone = {request.prompt: engine.run([request])[0].prompt_tokens for call in calls for request in call}
    words = [f"w{'x' * i}" for i in range(6)]
    forced = [
        [Request("Repeat.", constraint=Constraint(choices=(f"{c}{word}",))) for word in words] for c in "abcdefgh"
    ]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(engine.run, forced))
        tokens = list(pool.map(engine.run, calls))
    assert [[o.text for o in call] for call in answers] == [[f"{c}{word}" for word in words] for c in "abcdefgh"]
    for call, outcomes in zip(calls, tokens, strict=True):
        assert [o.prompt_tokens for o in outcomes] == [alone[request.prompt] for request in call]
    engine.stats().check()


def test_more_rows_than_fit_into_vllm(engine: OfflineEngine) -> None:
    """Rows wait until vLLM has room for them. Every row is answered, in order."""
    rows = 560
    requests = [Request(f"Pick {i}.", constraint=Constraint(choices=(f"{i % 7}",))) for i in range(rows)]
    outcomes = engine.run(requests)
    assert [o.text for o in outcomes] == [f"{i % 7}" for i in range(rows)]
    stats = engine.stats()
    assert stats.peak_running <= 256
    assert 0 < stats.mean_running <= stats.peak_running
    assert stats.busy_seconds > 0
    assert stats.queue_seconds > 0
    assert max(o.queue_seconds for o in outcomes) > min(o.queue_seconds for o in outcomes) >= 0


def test_each_shared_prefix_is_computed_once(engine: OfflineEngine) -> None:
    """Shuffled rows of several prefixes from two callers: hardly more is computed than the best order would compute."""
    block_size = engine._state.core.block_size
    rng = random.Random(7)
    prompts = [
        f"Prefix {p} " + " ".join(f"{p}-{w}" for w in range(80)) + f" and row {r}" for p in range(6) for r in range(6)
    ]
    rng.shuffle(prompts)
    requests = [Request(p, sampling=SamplingOptions(max_tokens=2), apply_chat_template=False) for p in prompts]
    tokenizer = engine._state.core.llm.renderer.get_tokenizer()
    optimum = optimal_prompt_tokens([tokenizer(p)["input_ids"] for p in prompts], block_size)
    before = engine.stats()
    with ThreadPoolExecutor(2) as pool:
        outcomes = [o for half in pool.map(engine.run, (requests[:18], requests[18:])) for o in half]
    computed = sum(o.prompt_tokens - o.cached_tokens for o in outcomes)
    added = engine.stats().since(before)
    assert added.computed_tokens == computed
    assert computed <= 1.02 * optimum
    assert optimum < 0.5 * added.prompt_tokens


def test_identical_rows_are_computed_once(engine: OfflineEngine) -> None:
    requests = [Request(f"Name colour {i % 4}.", sampling=SHORT) for i in range(40)]
    engine.forget_answers()
    before = engine.stats()
    outcomes = engine.run(requests)
    added = engine.stats().since(before)
    assert (added.rows, added.done, added.duplicates) == (40, 40, 36)
    assert added.completion_tokens == sum(o.completion_tokens for o in outcomes[:4])
    assert [o.text for o in outcomes] == [o.text for o in outcomes[:4]] * 10
    assert all(o.cached_tokens == o.prompt_tokens for o in outcomes[4:])

    before = engine.stats()
    again = engine.run(requests, dedupe=False)
    assert engine.stats().since(before).duplicates == 0
    assert [o.text for o in again] == [o.text for o in outcomes]

    drawn = SamplingOptions(max_tokens=12, temperature=1.5)
    before = engine.stats()
    texts = [o.text for o in engine.run([Request("Tell me a story.", sampling=drawn)] * 8)]
    assert len(set(texts)) > 1
    seeded = [Request("Tell me a story.", sampling=drawn.replace({"seed": i % 2})) for i in range(8)]
    texts = [o.text for o in engine.run(seeded)]
    assert texts == texts[:2] * 4
    assert engine.stats().since(before).duplicates == 6
    engine.stats().check()


def test_a_caller_that_leaves_does_not_take_others_rows_with_it(engine: OfflineEngine) -> None:
    """Its rows end. If another caller waits for an identical row, that caller still gets its answer."""
    story = SamplingOptions(max_tokens=60, ignore_eos=True)
    mine = [Request(f"Story {i}", sampling=story) for i in range(600)]
    theirs = [Request(f"Story {i}", sampling=story) for i in (0, 599)]
    before = engine.stats()
    leaving, staying = engine.submit(mine), engine.submit(theirs)
    time.sleep(0.5)
    leaving.cancel()
    assert [o.completion_tokens for o in staying.result(timeout=120)] == [60, 60]
    while engine.stats().in_flight or engine.stats().pending:
        time.sleep(0.05)
    added = engine.stats().since(before)
    assert added.rows == 602
    assert added.done + added.abandoned == 602
    assert added.abandoned >= 400
    engine.stats().check()


def test_duplicates_and_unicode(engine: OfflineEngine) -> None:
    text = "Wie heißt die Hauptstadt von Österreich? 🙂 日本語"
    outcomes = engine.run([Request(text, sampling=SHORT)] * 5 + [Request("x\x00y", sampling=SHORT)])
    assert len({o.text for o in outcomes[:5]}) == 1
    assert all(o.error is None for o in outcomes)


def test_system_message_changes_the_prompt(engine: OfflineEngine) -> None:
    plain, told = engine.run(
        [Request("hi", sampling=SHORT), Request("hi", system_message="Answer in French. " * 9, sampling=SHORT)]
    )
    assert told.prompt_tokens > plain.prompt_tokens


def test_shared_prefix_is_cached(engine: OfflineEngine) -> None:
    system = "You are a careful clerk who files letters. " * 12
    engine.run([Request("first", system_message=system, sampling=SHORT)])
    (second,) = engine.run([Request("second", system_message=system, sampling=SHORT)])
    assert second.cached_tokens >= 64


def test_guided_json_is_complete_or_an_error(engine: OfflineEngine) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "year": {"type": "integer"}},
        "required": ["name", "year"],
        "additionalProperties": False,
    }
    constraint = Constraint(json_schema=json.dumps(schema))
    full, cut = engine.run(
        [
            Request("Who wrote Faust, and when?", sampling=SamplingOptions(max_tokens=80), constraint=constraint),
            Request("Who wrote Faust, and when?", sampling=SamplingOptions(max_tokens=3), constraint=constraint),
        ]
    )
    assert cut.error is not None
    assert cut.error.code == "truncated"
    assert cut.text
    if full.error is None:
        assert set(json.loads(full.text or "")) == {"name", "year"}
        assert ": " not in (full.text or "")  # compact: no free whitespace
    else:
        assert full.error.code == "truncated"


def test_choices_of_one_run_do_not_leak_into_another(engine: OfflineEngine) -> None:
    requests = [
        Request("Yes or no?", constraint=Constraint(choices=("yes", "no")) if i % 2 else None, sampling=SHORT)
        for i in range(10)
    ]
    outcomes = engine.run(requests)
    assert all(o.text in ("yes", "no") for o in outcomes[1::2])
    assert all(o.text not in ("yes", "no") for o in outcomes[0::2])


def test_truncation_only_when_asked(engine: OfflineEngine) -> None:
    """The renderer cuts the user's text and keeps the template around it."""
    from dataclasses import replace

    from daft_vllm.engine.text.render import RequestRenderer

    core = engine._state.core
    tokenizer = core.llm.renderer.get_tokenizer()
    long = Request("start " + "word " * 3000 + "end")
    for side, kept, lost in (("right", "start", "end"), ("left", "end", "start")):
        config = replace(engine.config, truncate_prompt_tokens=200, truncation_side=side)
        (row,) = RequestRenderer(config, core.llm.renderer, core.max_model_len).prepare([long])
        assert isinstance(row, Prepared)
        tokens = unpack_tokens(row.tokens)
        assert 190 <= len(tokens) <= 200
        text = tokenizer.decode(tokens)
        assert kept in text
        assert f" {lost}<" not in text
        assert text.rstrip().endswith("assistant")
    asked = [replace(long, truncation=Truncation(tokens, "left")) for tokens in (100, -1, None)]
    shorter, whole, refused = RequestRenderer(config, core.llm.renderer, core.max_model_len).prepare(asked)
    assert isinstance(shorter, Prepared)
    assert isinstance(whole, Prepared)
    assert 90 <= len(unpack_tokens(shorter.tokens)) <= 100, "a request's own comes before the engine's"
    assert len(unpack_tokens(whole.tokens)) > 200
    assert isinstance(refused, Outcome)
    with pytest.raises(OptionError, match="does not fit"):
        engine.check_truncation(Truncation(5000))
    config = replace(engine.config, truncate_prompt_tokens=-1)
    (row,) = RequestRenderer(config, core.llm.renderer, core.max_model_len).prepare([long])
    assert isinstance(row, Prepared)
    assert len(unpack_tokens(row.tokens)) <= core.max_model_len - 1
    with pytest.raises(OptionError, match="does not fit"):
        RequestRenderer(replace(config, truncate_prompt_tokens=5000), core.llm.renderer, core.max_model_len)


def test_missing_chat_template_is_said(engine: OfflineEngine) -> None:
    from daft_vllm.engine.text.render import RequestRenderer

    core = engine._state.core
    tokenizer = core.llm.renderer.get_tokenizer()
    template, tokenizer.chat_template = tokenizer.chat_template, None
    try:
        renderer = RequestRenderer(engine.config, core.llm.renderer, core.max_model_len)
        with pytest.raises(ModelError, match="apply_chat_template=False"):
            renderer.check_chat_template()
        (refused,) = renderer.prepare([Request("hi")])
        assert isinstance(refused, Outcome)
        assert refused.error is not None
        assert refused.error.code == "invalid_prompt"
        # The prompt is sent as it is, with the token that begins every text.
        (plain,) = renderer.prepare([Request("hi", apply_chat_template=None)])
        assert isinstance(plain, Prepared)
        assert unpack_tokens(plain.tokens) == tokenizer("hi")["input_ids"]
    finally:
        tokenizer.chat_template = template
    RequestRenderer(engine.config, core.llm.renderer, core.max_model_len).check_chat_template()


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "object", "properties": {"n": {"type": "string", "format": "iri"}}}, "/properties/n: format: "),
        ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, "/: uniqueItems: "),
        ({"type": "string", "pattern": "(?<=a)b"}, "/: pattern: "),
        ({"type": "integer", "minimum": 2, "maximum": 1}, "contradict"),
    ],
)
def test_schemas_that_cannot_be_enforced_are_refused(schema: dict[str, object], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        check_constraint(Constraint(json_schema=json.dumps(schema)))


def test_a_schema_that_nobody_checked_is_an_error_of_its_row(engine: OfflineEngine) -> None:
    unchecked = Constraint(json_schema=json.dumps({"type": "array", "items": {"type": "string"}, "uniqueItems": True}))
    refused, answered = engine.run(
        [Request("Colours?", constraint=unchecked, sampling=SHORT), Request("Hello", sampling=SHORT)]
    )
    assert refused.error is not None
    assert refused.error.code == "invalid_request"
    assert "uniqueItems" in str(refused.error)
    assert answered.error is None


def test_schemas_that_can_be_enforced_pass() -> None:
    check_constraint(Constraint(json_schema=json.dumps({"type": "array", "items": {"enum": ["a", "b"]}})))
    check_constraint(Constraint(choices=("a", "b")))
