"""What a job counts: failures in the rows themselves, everything else in the engines, if their counters come back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import daft
import pytest
from daft import col
from rich.console import Console

from daft_vllm import job
from daft_vllm.cli.summary import summary_table
from daft_vllm.engine import EngineStats
from daft_vllm.udf.options import PromptOptions
from tests.conftest import ENGINE_ARGS


def shown(summary: job.Summary) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(summary_table(summary, "out", dollars_per_hour=1.0))
    return capture.get()


def test_failures_are_counted_although_no_counter_comes_back(
    engine: object, smollm2: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from an engine that was killed."""
    df = daft.from_pydict({"q": ["one", "word " * 2000, "two", None]})
    options = PromptOptions(
        model=smollm2, gpus=0, use_process=False, engine_args=ENGINE_ARGS, sampling={"max_tokens": 4}
    )
    for name in ("a.parquet", "folder/"):
        summary = job.run_job(df, col("q"), f"{tmp_path}/{name}", options=options)
        assert (summary.rows, summary.failed, summary.known) == (4, 1, True)
        assert "completion tokens" in shown(summary)
    nothing = dict.fromkeys([*EngineStats.names(), "workers"], 0.0)
    monkeypatch.setattr(job, "read_progress", lambda folder: nothing)
    summary = job.run_job(df, col("q"), f"{tmp_path}/b.jsonl", options=options)
    assert (summary.rows, summary.failed, summary.known) == (4, 1, False)
    assert "unknown: those of some engines did not come back" in shown(summary)
    assert "completion tokens" not in shown(summary)
    assert "without the load" not in shown(summary)
    assert "without the load" in shown(replace(summary, known=True))
