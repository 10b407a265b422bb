"""Outcomes as columns, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from daft_vllm.engine.requests.outcome import ErrorValue, Outcome
from daft_vllm.engine.requests.toolbox import ToolAnswer, ToolCall
from daft_vllm.engine.store.segments import SCHEMA


def batch_of(keys: Sequence[bytes], outcomes: Sequence[Outcome]) -> pa.RecordBatch:
    """Return outcomes, and their keys, as a record batch."""
    now = datetime.now(UTC)
    columns: dict[str, list[Any]] = {
        "key": list(keys),
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
    }
    return pa.record_batch([pa.array(columns[field.name], field.type) for field in SCHEMA], schema=SCHEMA)


def outcomes_at(batch: pa.RecordBatch, rows: Sequence[int]) -> list[Outcome]:
    """Return some outcomes of a batch. They waited for nothing, so their ``queue_seconds`` are 0."""
    return [_outcome(value) for value in batch.take(pa.array(rows, pa.int32())).to_pylist()]


def _outcome(value: Mapping[str, Any]) -> Outcome:
    code = value["error_code"]
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
