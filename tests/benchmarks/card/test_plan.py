"""The plan: it fits into the time, the important comes first, and what is left out is said."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.card.command import described
from benchmarks.card.model import choose_model
from benchmarks.card.plan import CARD_ARMS, CARD_WORKLOADS, SET_UP, TESTS, allocate, page_seconds, stages_of
from benchmarks.card.run import CardRun
from benchmarks.card.stages.sizing import next_rows
from benchmarks.suite.suites import suite

MINUTES = [2, 2.5, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30, 45, 60]


@pytest.mark.parametrize("minutes", MINUTES)
@pytest.mark.parametrize("name", ["cpu", "l4", "h200"])
def test_a_plan_fits_into_its_time(name: str, minutes: float) -> None:
    total = 60 * minutes
    plan = allocate(stages_of(suite(name), total, CARD_ARMS, CARD_WORKLOADS), total - page_seconds(total))
    assert sum(stage.seconds for stage in plan) + page_seconds(total) <= total + 1e-6
    for stage in plan:
        assert (stage.seconds >= stage.least) != bool(stage.why_not)
        assert stage.seconds <= max(stage.most, 0)
    seconds = {stage.name: stage.seconds for stage in plan}
    assert seconds[SET_UP] > 0
    assert seconds[CARD_ARMS[0]] > 0, "two minutes are enough for one arm"
    assert seconds[TESTS] <= 0.25 * total
    # Nothing is left out before something that matters less; and no round begins before all arms had theirs.
    arms = [stage for stage in plan if stage.arm]
    kept = [bool(stage.seconds) for stage in arms if stage.round == 0]
    assert kept == sorted(kept, reverse=True)
    assert all(kept) or not any(stage.seconds for stage in arms if stage.round)


def test_all_arms_and_all_workloads_fit_into_twelve_minutes() -> None:
    plan = allocate(stages_of(suite("h100"), 720, CARD_ARMS, CARD_WORKLOADS), 720 - page_seconds(720))
    assert all(stage.seconds for stage in plan if not stage.round)
    assert next(stage for stage in plan if stage.arm == "ray-data").workloads == ("blog",)


def test_too_little_time_for_the_tests_is_said() -> None:
    plan = allocate(stages_of(suite("l4"), 120, CARD_ARMS, CARD_WORKLOADS), 114)
    assert "its share of the time is 30 s" in next(stage for stage in plan if stage.name == TESTS).why_not
    assert "s are left for it" in next(stage for stage in plan if stage.arm == "ray-data").why_not


def test_the_first_arm_compiles_only_once() -> None:
    def first(loaded: float | None) -> float:
        stages = stages_of(suite("h100"), 720, CARD_ARMS, CARD_WORKLOADS, loaded=loaded)
        return next(stage for stage in stages if stage.arm).least

    assert first(None) > first(10) == first(20)
    assert first(60) == first(10) + 30, "a load that took longer is expected to take as long again"


def test_rows_grow_until_a_run_is_long_enough() -> None:
    assert next_rows(100, 1.0, target=10, left=100) == 800  # eight times at most
    assert next_rows(100, 5.0, target=10, left=100) == 200
    assert next_rows(100, 6.5, target=10, left=100) is None
    assert next_rows(100, 5.0, target=10, left=10) is None  # 140 rows fit: not worth it
    assert next_rows(100, 5.0, target=10, left=12) == 168
    # As many as another arm ran, or as many as fit.
    assert next_rows(100, 5.0, target=10, left=100, agreed=500) == 500
    assert next_rows(100, 5.0, target=10, left=12, agreed=500) == 168
    assert next_rows(182, 6.5, target=10, left=10, agreed=500) is None  # 196 fit: not worth it
    assert next_rows(500, 5.0, target=10, left=100, agreed=500) is None
    assert next_rows(100, 5.0, target=10, left=1, agreed=500) is None


def test_models(tmp_path: Path) -> None:
    assert choose_model(suite("cpu"), None).random is False
    on_l4 = choose_model(suite("l4"), None)
    assert on_l4.engine_args == {"load_format": "dummy", "quantization": "fp8_per_tensor"}
    assert on_l4.weights() < 0.6 * choose_model(suite("h100"), None).weights()
    assert choose_model(suite("l4"), "qwen3-4b").engine_args == {"load_format": "dummy"}
    (tmp_path / "config.json").write_text("{}")
    assert choose_model(suite("h100"), str(tmp_path)).random
    (tmp_path / "model.safetensors").write_text("")
    assert choose_model(suite("h100"), str(tmp_path)).engine_args == {}
    (tmp_path / "empty").mkdir()
    for wrong in ("Qwen/Nothing", str(tmp_path / "empty")):
        with pytest.raises(ValueError, match=r"neither a folder|no config\.json"):
            choose_model(suite("h100"), wrong)


@pytest.mark.parametrize("name", ["cpu", "l4", "a100", "h100", "h200"])
def test_a_dry_run_says_all_of_it(name: str, tmp_path: Path) -> None:
    run = CardRun(suite(name), 12, tmp_path / "new")
    text = described(run)
    for word in ("12 minutes", "billion weights", "rows of the first runs: blog", "tests", *CARD_ARMS, "page"):
        assert word in text
    assert not (tmp_path / "new").exists()


def test_what_is_refused_before_anything_runs(tmp_path: Path) -> None:
    import typer

    app = typer.Typer()
    app.command()(main)

    def refused(says: str, *arguments: str) -> None:
        result = CliRunner().invoke(app, ["--out", str(tmp_path / "out"), *arguments], env={"COLUMNS": "300"})
        assert result.exit_code == 2
        assert says in result.output

    refused("'h1000' is none of", "--suite", "h1000", "--minutes", "12")
    refused("--minutes is from 2 to", "--minutes", "1")
    refused("follow from the time", "--minutes", "5", "--rounds", "2")
    refused("follow from the time", "--minutes", "5", "--rows", "all=4:8")
    refused("with --minutes only", "--dry-run")
    refused("neither a folder nor a known model", "--minutes", "5", "--model", "nobody/nothing")
    refused("'cold' is none of", "--minutes", "5", "--workloads", "cold")
    refused("'pressure' is none of", "--minutes", "5", "--workloads", "pressure")
    refused("'ours-shared' is none of", "--minutes", "5", "--arms", "ours-shared")
    assert not (tmp_path / "out").exists()
