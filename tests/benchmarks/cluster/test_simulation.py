"""The traces, the policies and the figures of simulated clusters."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from benchmarks.cluster.__main__ import main
from benchmarks.cluster.figures import Figures, append, figures_of, lower_bound, markdown, read
from benchmarks.cluster.policies import POLICIES
from benchmarks.cluster.policies.base import Setting
from benchmarks.cluster.policies.daft import DaftRouter
from benchmarks.cluster.policies.sglang import SGLangRouter
from benchmarks.cluster.replica import EngineSize
from benchmarks.cluster.simulation import run
from benchmarks.cluster.steps import StepSeconds
from benchmarks.cluster.traces import BLOCK, SHAPES, Row, Trace, make_trace
from benchmarks.cluster.vllm_scheduler import tokens_of
from daft_vllm.engine.scheduling.prefix import optimal_prompt_tokens

SECONDS = StepSeconds(step=0.01, new=1e-5, decode=1e-5, context=1e-8)


def setting(replicas: int, sequences: int = 16) -> Setting:
    return Setting(replicas, EngineSize(sequences, 8192, 25_000), SECONDS, 128)


def rows_of(prefixes: int, rows: int, output: int = 10) -> tuple[Row, ...]:
    """Return rows in the order of their prefixes, of two blocks; each has one block of its own."""
    return tuple(
        Row(i, (2 * (i % prefixes), 2 * (i % prefixes) + 1), 1000 + i, 1, 48, output, ((i % prefixes, 32),))
        for i in range(rows)
    )


@pytest.mark.parametrize("name", SHAPES)
def test_a_trace_is_that_of_its_seed_and_its_optimum_is_exact(name: str) -> None:
    trace = make_trace(name, scale=0.01 if name == "batchllm" else 0.001)
    assert trace == make_trace(name, scale=0.01 if name == "batchllm" else 0.001)
    if name != "batchllm":  # too few prefixes for a shuffle to show
        assert trace.rows != make_trace(name, scale=0.001, seed=2).rows
    assert trace.optimum == optimal_prompt_tokens([tokens_of(row) for row in trace.rows], BLOCK)
    assert all(len(tokens_of(row)) == row.prompt for row in trace.rows)


def test_zipf_is_skewed() -> None:
    counts = Counter(row.shared for row in make_trace("zipf", scale=0.1).rows)
    assert counts.most_common(1)[0][1] > 4_000


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", ["blog", "nested", "mixed"])
def test_every_policy_sends_each_row_once(policy: str, name: str) -> None:
    trace = make_trace(name, scale=0.005)
    for replicas in (1, 7):
        ended = run(trace, POLICIES[policy](setting(replicas)), batch=128, batches=4)
        assert set(ended.places) <= set(range(replicas))
        assert sum(replica.output_tokens for replica in ended.replicas) == sum(row.output for row in trace.rows)
        figures = figures_of(trace, policy, setting(replicas), ended)
        assert figures.computed >= 1
        assert figures.makespan >= 1


@pytest.mark.parametrize("name", ["blog", "nested", "zipf"])
def test_the_ledger_keeps_prefixes_together_and_the_load_even(name: str) -> None:
    trace = make_trace(name, scale=0.05)
    replicas = setting(8, sequences=64)
    found = {
        policy: figures_of(trace, policy, replicas, run(trace, POLICIES[policy](replicas)))
        for policy in ("live", "daft", "sglang")
    }
    live = found.pop("live")
    assert live.sharing >= 0.97
    assert live.load <= 1.10
    assert all(live.seconds < other.seconds for other in found.values())


def test_figures_by_hand() -> None:
    trace = Trace("tiny", rows_of(prefixes=2, rows=4), 10)
    ended = run(trace, POLICIES["sorted"](setting(2)))
    figures = figures_of(trace, "sorted", setting(2), ended)
    # Each replica has two rows of one prefix: 48 and 16 tokens in one step, and nine steps that write the rest.
    assert trace.optimum == 128
    assert (figures.computed, figures.sharing, figures.spread, figures.load) == (1, 1, 1, 1)
    reads = 32 + 2 * sum(range(48, 57))
    assert ended.seconds == pytest.approx(10 * 0.01 + 64e-5 + 18e-5 + reads * 1e-8)
    alone = 9 * (0.01 + 1e-5) + sum(range(48, 57)) * 1e-8
    assert lower_bound(trace, setting(2)) == pytest.approx(alone + 0.01)
    many = Trace("many", rows_of(prefixes=2, rows=4000), 10)
    steps = 4000 * 9 / 16
    work = steps * 0.01 + (64 + 4000 * 16) * 1e-5 + 36_000e-5 + 4000 * sum(range(48, 57)) * 1e-8
    assert lower_bound(many, setting(2)) == pytest.approx(work / 2)


def test_a_random_policy_computes_prefixes_several_times() -> None:
    trace = Trace("tiny", rows_of(prefixes=2, rows=400), 10)
    figures = figures_of(trace, "random", setting(4), run(trace, POLICIES["random"](setting(4))))
    assert figures.spread == 4
    assert figures.computed == (8 * 32 + 400 * 16) / (2 * 32 + 400 * 16)
    assert figures.sharing == (398 - 6) / 398


def test_daft_gives_a_bucket_to_one_engine_and_counts_what_it_ever_got() -> None:
    policy = DaftRouter(setting(3))
    policy.add(rows_of(prefixes=4, rows=1200))
    assert policy._loads == [0, 0, 0], "up to 5,000 rows are kept back"
    policy.finish()
    # Four buckets of 300. None is known at first: the last engine that is within 256 rows of the least gets it.
    assert policy._loads == [300, 300, 600]
    policy.add(rows_of(prefixes=1, rows=100))
    policy.finish()
    assert policy._loads == [400, 300, 600] or policy._loads == [300, 400, 600]


def test_sglang_goes_to_the_prefix_unless_loads_differ() -> None:
    policy = SGLangRouter(setting(2))
    policy.add(rows_of(prefixes=1, rows=65))
    assert policy._loads == [65, 0]
    policy.add([replace(row, index=100 + row.index) for row in rows_of(prefixes=1, rows=1)])
    assert policy._loads == [65, 1], "65 more rows than the other"
    policy.answered(0, rows_of(prefixes=1, rows=64))
    policy.add([Row(200, (8, 9), 5000, 1, 48, 1, ((4, 32),))])
    assert policy._loads == [1, 2], "a new prefix goes where the tree is smallest"


def test_the_command_writes_lines_a_table_and_goes_on(tmp_path: Path) -> None:
    app = Typer()
    app.command()(main)
    options = ["--scale", "0.001", "--trace", "blog", "--out", str(tmp_path), "--replicas", "1", "--replicas", "2"]
    first = CliRunner().invoke(app, options)
    assert first.exit_code == 0, first.output
    lines = (tmp_path / "results.jsonl").read_text(encoding="utf-8")
    assert len(lines.splitlines()) == 2 * len(POLICIES)
    assert (tmp_path / "table.md").read_text(encoding="utf-8") in first.output
    assert CliRunner().invoke(app, options).exit_code == 0
    assert (tmp_path / "results.jsonl").read_text(encoding="utf-8") == lines
    wrong = CliRunner().invoke(app, ["--policy", "best", "--out", str(tmp_path)])
    assert wrong.exit_code == 2
    small = CliRunner().invoke(app, ["--sequences", "4096", "--out", str(tmp_path), "--scale", "0.001"])
    assert "which is not simulated" in " ".join(small.output.replace("│", " ").split())


def test_of_a_run_that_is_repeated_the_last_counts(tmp_path: Path) -> None:
    one = Figures("blog", "live", 2, 64, 100, 50, 1.0, 1.0, 1.0, 1.0, 5.0, 1.1, 0.1)
    for figures in (one, replace(one, policy="daft"), replace(one, seconds=4.0)):
        append(tmp_path / "results.jsonl", figures)
    assert read(tmp_path / "results.jsonl") == [replace(one, seconds=4.0), replace(one, policy="daft")]
    assert "| blog | 100 | 50 | 2 | 64 | live | 1.000 |" in markdown([one])
