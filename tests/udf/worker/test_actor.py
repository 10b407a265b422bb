"""The actor itself, called as Daft calls it: series in, series out, metrics and live counters on the way."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from daft import DataType, Series
from daft.udf.metrics import _metrics_context

from daft_vllm import Constraint, EngineConfig, OfflineEngine, Outcome, Request, SamplingOptions
from daft_vllm.errors import EngineDiedError, EngineStartError, RowError
from daft_vllm.udf.answers.return_format import ReturnFormat
from daft_vllm.udf.options import PromptOptions
from daft_vllm.udf.worker.actor import PromptActor
from daft_vllm.udf.worker.progress import read_progress
from daft_vllm.udf.worker.requests import RequestMaker
from daft_vllm.udf.worker.spec import PromptSpec
from tests.conftest import ENGINE_ARGS
from tests.helpers import code_of


def spec_of(smollm2: str, return_format: Any = None, **options: Any) -> PromptSpec:
    return PromptSpec(
        engine=EngineConfig(smollm2, dict(ENGINE_ARGS), gpus=0),
        sampling=SamplingOptions(max_tokens=6),
        format=ReturnFormat.of(return_format),
        options=PromptOptions(**options),
    )


def test_a_batch_is_answered_and_counted(engine: OfflineEngine, smollm2: str, tmp_path: Path) -> None:
    engine.check_constraints([Constraint(choices=("yes",))], Request(None))  # once per engine, by a row of its own
    before = engine.stats()
    actor = PromptActor(spec_of(smollm2, ["yes", "no"], details=True, progress_folder=str(tmp_path)))
    with _metrics_context() as metrics:
        result = actor.answer(Series.from_pylist(["Is ice cold?", None, "word " * 2000], name="q"))
    assert result.name() == "q"
    rows = result.to_pylist()
    assert rows[0]["value"] in ("yes", "no")
    assert [code_of(row) for row in rows] == [None, "null_prompt", "prompt_too_long"]
    assert metrics is not None
    assert actor._opened() is engine
    live = read_progress(str(tmp_path))
    assert live["workers"] == 1
    assert live["done"] == 3
    assert live["failed"] == 1
    assert engine.stats().done == before.done + 3


def test_answers_that_do_not_satisfy_their_format_are_failures(
    engine: OfflineEngine, smollm2: str, tmp_path: Path
) -> None:
    """Nothing that vLLM returns is believed: an answer is checked against the format, and counted if it fails."""
    actor = PromptActor(spec_of(smollm2, {"type": "object"}, progress_folder=str(tmp_path), on_error="raise"))
    actor._opened()
    outcomes = [Outcome(text='{"a": 1}', finish_reason="stop"), Outcome(text="[]", finish_reason="stop")]
    parsed = [actor._spec.format.parse_outcome(None, outcome) for outcome in outcomes]
    with _metrics_context(), pytest.raises(RowError, match=r"1 of 2 rows have no value \(invalid_output 1\)"):
        actor._report(outcomes, parsed)
    assert parsed[0].value == '{"a": 1}'
    assert read_progress(str(tmp_path))["failed"] == 1


def test_long_arrays_of_tokens_are_not_mixed_up() -> None:
    """numpy writes only the ends of a long array."""
    long = np.arange(3000)
    other = long.copy()
    other[1500] = 7
    maker = RequestMaker(replace(spec_of("smollm2-135m"), row_options=("allowed_token_ids",)), lambda: False)
    cells = Series.from_pylist([long, other, None], dtype=DataType.python())
    first, second, default = maker.sampling(3, [cells])
    assert isinstance(first, SamplingOptions)
    assert isinstance(second, SamplingOptions)
    assert isinstance(default, SamplingOptions)
    assert first.allowed_token_ids == long.tolist()
    assert second.allowed_token_ids == other.tolist()
    assert default.allowed_token_ids is None


def test_a_query_whose_engine_is_dead_for_good_opens_no_other(
    engine: OfflineEngine, smollm2: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor = PromptActor(spec_of(smollm2))
    rows = Series.from_pylist(["Is ice cold?"], name="q")
    dead: Future[Any] = Future()
    dead.set_exception(EngineDiedError("dead for good"))
    monkeypatch.setattr(OfflineEngine, "submit", lambda self, requests, **options: dead)
    with _metrics_context(), pytest.raises(EngineDiedError, match="for good"):
        actor.answer(rows)
    monkeypatch.undo()
    with _metrics_context(), pytest.raises(EngineDiedError, match="for good"):
        actor.answer(rows)
    with _metrics_context():
        assert PromptActor(spec_of(smollm2)).answer(rows).to_pylist() != [None]


def test_a_batch_that_is_cancelled_while_it_is_parsed_asks_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its retries would be rows that nobody waits for."""
    actor = PromptActor(spec_of("somewhere", ["yes", "no"], retries=2))
    asked: list[int] = []
    parsing, go_on = threading.Event(), threading.Event()

    def submit(requests: list[Request]) -> Future[list[Outcome]]:
        asked.append(len(requests))
        future: Future[list[Outcome]] = Future()
        future.set_result([Outcome("maybe", "stop")] * len(requests))
        return future

    def retried(*args: Any) -> dict[int, Request]:
        parsing.set()
        go_on.wait(10)
        return {0: Request("again")}

    monkeypatch.setattr(actor, "_submit", submit)
    monkeypatch.setattr(actor, "_retried_requests", retried)

    async def cancelled() -> None:
        task = asyncio.create_task(actor.answer_async(Series.from_pylist(["one", "two"], name="q")))
        await asyncio.to_thread(parsing.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()

    asyncio.run(cancelled())
    assert asked == [2]


def test_after_the_deadline_no_engine_is_opened() -> None:
    actor = PromptActor(spec_of("somewhere", ["yes", "no"], retries=2, details=True, deadline="2020-01-01T00:00"))
    with _metrics_context():
        column = actor.answer(Series.from_pylist(["one", None], name="q")).to_pylist()
    assert [row["value"] for row in column] == [None, None]
    assert column[0]["error"].startswith("deadline: the deadline, 2020-01-01 00:00:00")


def test_a_failed_start_is_not_tried_again_by_the_same_query(smollm2: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loads = []

    def load(spec: PromptSpec) -> OfflineEngine:
        loads.append(spec)
        time.sleep(0.1)  # the other batches come meanwhile
        raise EngineStartError(f"start {len(loads)}")

    monkeypatch.setattr("daft_vllm.udf.worker.actor.opened_engine", load)
    actor = PromptActor(spec_of(smollm2))

    async def query() -> list[object]:
        batches = [actor.answer_async(Series.from_pylist([f"{i}"])) for i in range(10)]
        return await asyncio.gather(*batches, return_exceptions=True)

    for number in (1, 2):  # Daft runs the expression's next query with the same actor
        assert [repr(e) for e in asyncio.run(query())] == [f"EngineStartError('start {number}')"] * 10


def test_an_expressions_next_query_is_watched_from_its_start(
    engine: OfflineEngine, smollm2: str, tmp_path: Path
) -> None:
    folder = tmp_path / "progress"
    actor = PromptActor(spec_of(smollm2, progress_folder=str(folder)))
    for rows in (3, 2):
        folder.mkdir()
        with _metrics_context():
            actor.answer(Series.from_pylist([f"What is {rows} + {i}?" for i in range(rows)]))
        live = read_progress(str(folder))
        assert (live["workers"], live["rows"], live["done"]) == (1, rows, rows)
        shutil.rmtree(folder)


def test_a_query_that_nobody_waits_for_says_so(smollm2: str) -> None:
    code = textwrap.dedent(f"""
        import threading, time
        import daft
        from daft_vllm import prompt

        def query():
            threading.main_thread().join()
            daft.from_pydict({{"q": ["a"]}}).select(prompt(daft.col("q"), model={smollm2!r}, gpus=0)).collect()

        threading.Thread(target=query).start()
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "EngineClosedError: Python is ending" in done.stderr
    assert "thread.join()" in done.stderr.splitlines()[-1]
