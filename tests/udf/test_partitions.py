"""The three ways to leave engines idle, and that a plan avoids them."""

from __future__ import annotations

import random
from itertools import groupby

import daft
import pytest
from daft import col, lit
from typer.testing import CliRunner

from daft_vllm import partition_by_prefix
from daft_vllm.cli import app
from daft_vllm.errors import OptionError
from daft_vllm.udf.partitions import plan_table, simulate

CLUSTER = {"engines": 16, "workers": 4}


def planned(rows: int) -> float:
    plan = plan_table(rows, **CLUSTER)
    return simulate(plan.partitions(), batch_size=plan.batch_size, **CLUSTER).busy


def test_skewed_partitions() -> None:
    skewed = [70_000] + [2_000] * 15
    assert simulate(skewed, batch_size=256, **CLUSTER).busy < 0.5
    assert planned(sum(skewed)) > 0.95


def test_fewer_partitions_than_workers() -> None:
    few = simulate([50_000] * 2, batch_size=256, **CLUSTER)
    assert few.busy < 0.55
    assert few.idle_engines == 8
    assert planned(100_000) > 0.95


def test_batches_too_large() -> None:
    large = simulate([1_000] * 4, batch_size=500, **CLUSTER)
    assert large.idle_engines == 8  # two batches in a partition, four engines on each worker
    assert large.busy < 0.6
    assert planned(4_000) > 0.9


@pytest.mark.parametrize("rows", [1, 7, 16, 100, 1_000, 12_345, 1_000_000, 7_654_321])
@pytest.mark.parametrize(("engines", "workers"), [(1, 1), (4, 1), (8, 8), (16, 4), (96, 12)])
def test_every_plan_keeps_the_rule_and_the_rows(rows: int, engines: int, workers: int) -> None:
    plan = plan_table(rows, engines=engines, workers=workers)
    assert sum(plan.partitions()) == rows
    assert len(plan.partitions()) == plan.tasks
    assert plan.rows_per_task == engines // workers * plan.batch_size
    assert plan.batch_size <= 2048
    if rows >= 100 * engines:
        busy = simulate(plan.partitions(), engines=engines, workers=workers, batch_size=plan.batch_size).busy
        assert busy > 0.9


def test_what_is_refused() -> None:
    with pytest.raises(OptionError, match="Use 8 or 12"):
        plan_table(1000, engines=10, workers=4)
    with pytest.raises(OptionError, match="rows is at least 1"):
        plan_table(0, engines=1)


def test_the_command() -> None:
    result = CliRunner().invoke(app, ["plan", "--rows", "1000000", "--engines", "8", "--workers", "4"])
    assert result.exit_code == 0, result.output
    assert "df.into_batches(" in result.stdout
    assert "max_concurrency=8" in result.stdout
    assert CliRunner().invoke(app, ["plan", "--rows", "10", "--engines", "3", "--workers", "2"]).exit_code == 1


def test_rows_that_share_a_prefix_become_neighbours() -> None:
    rng = random.Random(1)
    rows = [(f"{group} " * 20, f"row {i}") for i in range(3000) for group in [rng.choice("abcdefgh")]]
    rows += [("a " * 20, None), (None, "alone")]
    rng.shuffle(rows)
    table = {"id": list(range(len(rows))), "system": [a for a, _ in rows], "question": [b for _, b in rows]}
    ordered = partition_by_prefix(daft.from_pydict(table), "system", col("question") + lit("!"))
    found = ordered.to_pydict()
    assert sorted(found["id"]) == table["id"]
    assert all(rows[i] == (a, b) for i, a, b in zip(found["id"], found["system"], found["question"], strict=True))
    assert len(list(groupby(found["system"]))) == 9
    batches = [
        len(one) for one in partition_by_prefix(daft.from_pydict(table), "system", rows_per_task=500).to_arrow_iter()
    ]
    assert sum(batches) == len(rows)
    assert max(batches) <= 500


def test_columns_that_are_no_text_are_refused() -> None:
    df = daft.from_pydict({"id": [1], "text": ["a"]})
    with pytest.raises(OptionError, match="column 2 of the prompt is Int64, not text: cast it"):
        partition_by_prefix(df, "text", col("id"))
    with pytest.raises(OptionError, match="needs the columns of the prompt"):
        partition_by_prefix(df)
    with pytest.raises(OptionError, match="rows_per_task is at least 1, got 0"):
        partition_by_prefix(df, "text", rows_per_task=0)
