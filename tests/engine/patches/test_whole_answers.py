"""vLLM's core sends an answer's tokens with its first token and its last one, and each token only where it has to."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from daft_vllm.engine import OfflineEngine, Request, SamplingOptions

pytest.importorskip("vllm")


def messages_of(monkeypatch: pytest.MonkeyPatch, engine: OfflineEngine, request: Request) -> tuple[Any, list[int]]:
    """Return a row's outcome, and how many tokens each of the core's messages about it had."""
    processor = engine._state.core.llm.output_processor
    theirs, lengths = processor.process_outputs, []

    def process_outputs(outputs: Any, *args: Any, **more: Any) -> Any:
        lengths.extend(len(one.new_token_ids) for one in outputs)
        return theirs(outputs, *args, **more)

    monkeypatch.setattr(processor, "process_outputs", process_outputs)
    (outcome,) = engine.run([request], dedupe=False)
    monkeypatch.undo()
    return outcome, lengths


def sampled(**options: Any) -> SamplingOptions:
    return SamplingOptions.of({"ignore_eos": True, **options})


def test_an_answer_takes_two_messages_at_most(monkeypatch: pytest.MonkeyPatch, engine: OfflineEngine) -> None:
    for tokens, expected in ((1, [1]), (2, [1, 1]), (40, [1, 39])):
        request = Request("Name all months.", sampling=sampled(max_tokens=tokens))
        outcome, lengths = messages_of(monkeypatch, engine, request)
        assert lengths == expected
        assert (outcome.completion_tokens, outcome.finish_reason) == (tokens, "length")


def test_a_text_that_ends_answers_needs_each_token(monkeypatch: pytest.MonkeyPatch, engine: OfflineEngine) -> None:
    plain, _ = messages_of(monkeypatch, engine, Request("Name all months.", sampling=sampled(max_tokens=24)))
    word = plain.text.split()[3]
    request = Request("Name all months.", sampling=sampled(max_tokens=24, stop=[word]), draft=False)
    outcome, lengths = messages_of(monkeypatch, engine, request)
    assert outcome.finish_reason == "stop"
    assert outcome.text == plain.text[: plain.text.index(word)]
    assert Counter(lengths) == {1: outcome.completion_tokens}


def test_rows_that_run_together_and_are_preempted_keep_their_tokens(engine: OfflineEngine) -> None:
    requests = [Request(f"Count from {i}.", sampling=sampled(max_tokens=3 + i % 29)) for i in range(96)]
    together = engine.run(requests)
    assert [one.completion_tokens for one in together] == [3 + i % 29 for i in range(96)]
    assert all(one.error is None and one.text for one in together)
