"""``store=``: a query that is run again, and the rows that failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import daft
from daft import col

from daft_vllm import prompt
from tests.conftest import ENGINE_ARGS

WORDS = [f"word {i}" for i in range(40)]


def answers(rows: list[Any], store: Path, model: str, **options: Any) -> list[Any]:
    options = {"max_tokens": 6, "dedupe": False, "use_process": False, **options}
    answer = prompt(col("q"), model=model, gpus=0, engine_args=ENGINE_ARGS, store=str(store), **options)
    df = daft.from_pydict({"id": list(range(len(rows))), "q": rows})
    found = df.select("id", answer.alias("a")).sort("id").to_pydict()
    assert found["id"] == list(range(len(rows)))
    return found["a"]
