"""How many batches Daft gives to an engine at once."""

from __future__ import annotations

import asyncio
from typing import Any

import daft
import pytest
from daft import DataType, Series, col

from daft_vllm.udf.prompt import batches_in_flight
from daft_vllm.udf.worker import expression
from daft_vllm.udf.worker.expression import actor_expression


@pytest.mark.parametrize(
    ("engines", "media", "batches"),
    [(1, False, 64), (8, False, 64), (16, False, 128), (1, True, 4), (8, True, 32)],
)
def test_more_engines_have_more_batches(engines: int, media: bool, batches: int) -> None:
    assert batches_in_flight(engines, media=media) == batches


@pytest.mark.parametrize("batches", [3, 130])
def test_daft_runs_as_many_batches_at_once_as_it_is_told(batches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    running = most = 0

    class Actor:
        def __init__(self, spec: Any) -> None:
            pass

        async def answer_async(self, *columns: Series) -> Series:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.05 if most < batches else 0)
            running -= 1
            return columns[0]

    class Spec:
        dtype = DataType.int64()

        class engine:
            gpus = 0.0

    monkeypatch.setattr(expression, "PromptActor", Actor)
    made = actor_expression(
        Spec(),  # type: ignore[arg-type]
        [col("id")],
        use_process=False,
        engines=1,
        batch_size=2,
        max_batches=batches,
    )
    ids = daft.from_pydict({"id": list(range(1000))}).select(made).to_pydict()
    assert sorted(*ids.values()) == list(range(1000))
    assert batches <= most <= batches + 1, "Daft 0.7 calls one more than it is told"
