"""Records as columns, and back to outcomes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pyarrow as pa

from daft_vllm.engine.requests.outcome import ErrorValue, Outcome
from daft_vllm.engine.requests.toolbox import ToolAnswer, ToolCall
from daft_vllm.engine.store.segments import SCHEMA


class Record(NamedTuple):
    """An outcome, and whose it is.

    Attributes:
        key: what was asked: ``KEY_BYTES`` bytes.
        row: who asked it, see ``daft_vllm.engine.store.index``.
        attempt: how often the row was asked, this time included.
        outcome: what came of it.
        row_key: the name that the user gave the row. None: none.
        prompt: how the user's last text begins. None: unknown.
        verdict: whether the outcome's error was found by reading its text, which may be done anew.
    """

    key: bytes
    row: int
    attempt: int
    outcome: Outcome
    row_key: str | None = None
    prompt: str | None = None
    verdict: bool = False


def batch_of(records: Sequence[Record]) -> pa.RecordBatch:
    """Return records as a record batch."""
    now = datetime.now(UTC)
    outcomes = [record.outcome for record in records]
    columns: dict[str, list[Any]] = {
        "key": [record.key for record in records],
        "text": [one.text for one in outcomes],
        "finish_reason": [one.finish_reason for one in outcomes],
        "stop_reason": [None if one.stop_reason is None else json.dumps(one.stop_reason) for one in outcomes],
        "reasoning": [one.reasoning for one in outcomes],
        "tool_answer": [None if one.tool_answer is None else _tool_json(one.tool_answer) for one in outcomes],
        "prompt_tokens": [one.prompt_tokens for one in outcomes],
        "cached_tokens": [one.cached_tokens for one in outcomes],
        "completion_tokens": [one.completion_tokens for one in outcomes],
        "error_code": [one.error.code if one.error is not None else None for one in outcomes],
        "error_message": [one.error.message if one.error is not None else None for one in outcomes],
        "written": [now] * len(outcomes),
        "row": [record.row for record in records],
        "attempt": [record.attempt for record in records],
        "row_key": [_encodable(record.row_key) for record in records],
        "prompt": [_encodable(record.prompt) for record in records],
        "verdict": [record.verdict for record in records],
        "seconds": [one.seconds for one in outcomes],
        "queue_seconds": [one.queue_seconds for one in outcomes],
    }
    return pa.record_batch([pa.array(columns[field.name], field.type) for field in SCHEMA], schema=SCHEMA)


def outcomes_at(batch: pa.RecordBatch, rows: Sequence[int]) -> list[Outcome]:
    """Return some outcomes of a batch. They waited for nothing, so their seconds are 0."""
    return [_outcome(value) for value in batch.take(pa.array(rows, pa.int32())).to_pylist()]


def _outcome(value: Mapping[str, Any]) -> Outcome:
    code = None if value["verdict"] else value["error_code"]
    return Outcome(
        text=value["text"],
        finish_reason=value["finish_reason"],
        prompt_tokens=value["prompt_tokens"],
        cached_tokens=value["cached_tokens"],
        completion_tokens=value["completion_tokens"],
        error=None if code is None else ErrorValue(code, value["error_message"]),
        reasoning=value["reasoning"],
        tool_answer=None if value["tool_answer"] is None else _tool_answer(value["tool_answer"]),
        stop_reason=None if value["stop_reason"] is None else json.loads(value["stop_reason"]),
    )


def _tool_json(answer: ToolAnswer) -> str:
    return json.dumps({"content": answer.content, "calls": [call._asdict() for call in answer.calls]})


def _tool_answer(text: str) -> ToolAnswer:
    value = json.loads(text)
    return ToolAnswer(value["content"], tuple(ToolCall(**call) for call in value["calls"]))


def _encodable(text: str | None) -> str | None:
    """Return a text without halves of surrogate pairs, which Arrow can't hold."""
    return None if text is None else text.encode(errors="replace").decode()
