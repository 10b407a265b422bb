"""The figures and the page, on results made up for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.card.report.page import number, percent, write_page
from benchmarks.card.report.roofline import roof_of
from benchmarks.card.report.view import view_of
from benchmarks.card.results import CardResults
from benchmarks.suite.records import Record
from daft_vllm.model_configs import known_models
from daft_vllm.model_configs.cards import cards

CONFIG = known_models()["qwen3-8b"]
ARGS = {"max_model_len": 2048, "max_num_seqs": 1024, "max_num_batched_tokens": 16384, "gpu_memory_utilization": 0.9}
SETUP = {
    "device": {"name": "NVIDIA H200", "card": "H200", "total": 150 << 30, "free": 150 << 30, "driver": "580"},
    "versions": {"vllm": "0.32.0"},
    "model": {"name": "qwen3-8b, random weights", "folder": "there", "why": "no hub", "parameters": CONFIG.parameters},
    "weights": 2 * CONFIG.parameters,
    "engine_args": ARGS,
}


def record(arm: str = "ours-stream", rows: int = 1000, seconds: float = 10.0, **more: Any) -> Record:
    counted = {"prompt_tokens": 512 * rows, "cached_tokens": 224 * rows, "computed_tokens": 288 * rows}
    counted |= {"output_tokens": 64 * rows, "steps": 200, "rows_per_second": rows / seconds}
    return Record(arm, "blog", 0, rows, seconds=seconds, **(counted | more))  # type: ignore[arg-type]


def test_shares_of_the_card() -> None:
    roof = roof_of(record(), SETUP, CONFIG)
    card = cards()["H200"]
    assert (roof.computed, roof.output, roof.steps) == (28_800, 6_400, 20)
    assert roof.flops == pytest.approx(2 * CONFIG.parameters * (28_800 + 6_400) / card.flops)
    # Weights 20 times a second; and a sequence of 544 tokens, 34 blocks of 16, for each output token.
    token = 2 * 36 * 8 * 128 * 2
    assert roof.bandwidth == pytest.approx((20 * 2 * CONFIG.parameters + 6_400 * 544 * token) / card.bandwidth)
    assert roof.estimated is not None
    assert roof.of_estimate == pytest.approx(100 / roof.estimated)
    assert 0.1 < roof.of_estimate < 10


def test_what_an_arm_does_not_count_is_left_out() -> None:
    roof = roof_of(record("ray-data", cached_tokens=None, computed_tokens=None, steps=None), SETUP, CONFIG)
    assert (roof.computed, roof.flops, roof.bandwidth, roof.estimated) == (None, None, None, None)
    assert roof.output == 6_400
    on_cpu = {**SETUP, "device": {**SETUP["device"], "card": ""}}  # type: ignore[dict-item]
    assert roof_of(record(), on_cpu, CONFIG).flops is None


def test_ratios_are_those_of_whole_runs(tmp_path: Path) -> None:
    results = CardResults(tmp_path / "results.json")
    results.data.update(suite="h200", model=SETUP["model"]["name"], setup=SETUP)  # type: ignore[index]
    for one in (record(rows=100, seconds=4.0), record(), record("naive-64", 500, 20.0), record("ray-data", 1000, 40.0)):
        results.add(one)
    lines = {line.arm: line for line in view_of(results).workloads["blog"]}
    assert lines["ours-stream"].rate == 100
    assert (lines["naive-64"].behind, lines["ray-data"].behind) == (4.0, 4.0)
    assert lines["naive-64"].note == "500 rows, and not 1000, in the time it had"
    assert lines["ours-stream"].share == 1.0
    text = write_page(results).read_text(encoding="utf-8")
    assert "of its bandwidth" in text
    assert "NVIDIA H200" in text
    assert "measured / estimated" in (tmp_path / "report.md").read_text(encoding="utf-8")


def test_nothing_is_a_page_too(tmp_path: Path) -> None:
    text = write_page(CardResults(tmp_path / "results.json")).read_text(encoding="utf-8")
    for says in ("Nothing has run yet.", "No arm has run.", "No test has run."):
        assert says in text


def test_what_a_test_says_is_no_markup(tmp_path: Path) -> None:
    results = CardResults(tmp_path / "results.json")
    results.add_test("tests/a.py::one", "failed", 1.0, "assert '<script>' == 'a|b'")
    assert "<script>" not in write_page(results).read_text(encoding="utf-8")


def test_numbers() -> None:
    assert [number(x) for x in (None, 0.1234, 12.345, 1234.5)] == ["", "0.123", "12.3", "1,234"]
    assert [percent(x) for x in (None, 0.256)] == ["", "26%"]
