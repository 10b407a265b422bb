"""``daft-vllm top``: what it says of jobs that run, of those that don't, and of engines on Ray."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import daft
import pyarrow.parquet as pq
import pytest
from daft import col
from rich.console import Console
from typer.testing import CliRunner

from daft_vllm.cli import app
from daft_vllm.cli.top import picture
from daft_vllm.engine import EngineFigures, EngineStats, OfflineEngine
from daft_vllm.folders import PROGRESS_PREFIX, RUN_PREFIX, held_folder, is_held
from daft_vllm.job import run_job
from daft_vllm.udf.options import PromptOptions
from daft_vllm.udf.progress.figures import Rates, jobs_here, look_at, note_job, rates_between
from daft_vllm.udf.worker.progress import read_progress
from tests.conftest import ENGINE_ARGS, TINY_ARGS

runner = CliRunner()


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder without the jobs of others. Its name is short: Ray has sockets in it."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def write(folder: Path, name: str, written: float, *engines: EngineFigures, **counters: float) -> Path:
    """Write what a worker does."""
    stats = EngineStats().as_dict() | counters
    path = folder / f"{name}.json"
    shown = [asdict(engine) for engine in engines]
    path.write_text(json.dumps({"model": "m", "written": written, **stats, "engines": shown}), encoding="utf-8")
    return path


def top(*args: str) -> dict[str, Any]:
    said = runner.invoke(app, ["top", "--once", "--json", *args])
    assert said.exit_code == 0, said.output
    found: dict[str, Any] = json.loads(said.stdout)
    return found


def under_way(jobs: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the engines that were seen at work, each with its job."""
    return [(job, one) for job in jobs for one in job["engines"] if one["running"]]


def test_rates_are_those_between_two_looks(tmp_path: Path) -> None:
    """By the worker's own clock; and nothing of an engine that nobody hears of."""
    first = EngineFigures("ready", 2, 5, 10, 1000, 250, 600, 50, 0, 0, 4.0)
    second = EngineFigures("ready", 3, 1, 14, 1400, 450, 900, 90, 1, 1, 8.0)
    fresh = EngineFigures("loading")
    write(tmp_path, "1-a", 100.0, first, fresh, done=10, busy_seconds=4.0)
    before = look_at(tmp_path)
    path = write(tmp_path, "1-a", 104.0, second, fresh, done=15, failed=2, busy_seconds=8.0)
    now = look_at(tmp_path)
    assert (now.done, now.failed, now.model, now.rows) == (15, 2, "m", None)
    assert list(now.engines) == [("1-a", 0), ("1-a", 1)]
    engine = now.engines["1-a", 0]
    assert rates_between(before.engines["1-a", 0], engine) == Rates(1.0, 100.0, 75.0)
    assert engine.cached == 450 / 1400
    assert rates_between(None, engine) == rates_between(engine, engine) == Rates()
    assert rates_between(engine, before.engines["1-a", 0]) == Rates()
    counters = read_progress(str(tmp_path))
    assert (counters["workers"], counters["engines"], counters["done"]) == (1, 1, 15)
    console = Console(width=80, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(picture([before], [now]))
    lines = [" ".join(line.split()) for line in console.export_text().splitlines()]
    assert lines[0] == "m: 15 rows done, 2 failed"
    assert "1 ready 1.0 100 75 32% 3 1 1" in lines
    assert "2 loading 0.0 0 0 0 0 0" in lines
    assert "all 1.0 100 75 32% 3 1 1" in lines
    os.utime(path, (time.time() - 60,) * 2)
    assert look_at(tmp_path).engines["1-a", 0].is_silent
    assert rates_between(before.engines["1-a", 0], look_at(tmp_path).engines["1-a", 0]) == Rates()


def test_only_jobs_that_run_are_shown(temporary: Path) -> None:
    """Those that hold their folder and have said what they are, whatever else is there; and no secret of a URL."""
    assert top() == {"jobs": []}
    said = runner.invoke(app, ["top"])
    assert (said.exit_code, "no job of yours runs here" in said.output) == (0, True)
    with held_folder(RUN_PREFIX) as run, held_folder(PROGRESS_PREFIX) as query, held_folder(RUN_PREFIX):
        assert jobs_here() == []
        note_job(run, "one", output="s3://key:hidden@bucket/out/?token=hidden", rows=7)
        note_job(query, "two")
        assert sorted(jobs_here()) == sorted([Path(run), Path(query)])
        assert "hidden" not in (Path(run) / "job").read_text()
        (job,) = [job for job in top()["jobs"] if job["model"] == "one"]
        assert (job["rows"], job["pid"], job["engines"]) == (7, os.getpid(), [])
        assert job["output"].startswith("s3://bucket/out/")
        assert "no engine is open yet" in runner.invoke(app, ["top", "--once"]).stdout
        dead = temporary / f"{RUN_PREFIX}dead"
        shutil.copytree(run, dead)
        assert not is_held(dead)
        assert dead not in jobs_here()
    assert jobs_here() == []


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    for args, message in (
        (["--json"], "pass --once too"),
        (["--folder", str(tmp_path / "none")], "is no folder"),
    ):
        said = runner.invoke(app, ["top", *args])
        assert said.exit_code == 1
        assert message in said.output
    (tmp_path / "1-broken.json").write_text("{")
    (tmp_path / "2-old.json").write_text('{"done": 3}')
    (job,) = top("--folder", str(tmp_path))["jobs"]
    assert (job["done"], job["engines"]) == (3, [])


def test_a_job_in_this_process(engine: OfflineEngine, smollm2: str, tmp_path: Path) -> None:
    options = PromptOptions(
        model=smollm2,
        gpus=0,
        use_process=False,
        engine_args=ENGINE_ARGS,
        sampling={"max_tokens": 40, "ignore_eos": True},
    )
    df = daft.from_pydict({"q": [f"Tell about the number {i}." for i in range(40)]})
    before = engine.figures()[0]
    job = threading.Thread(
        target=run_job, args=(df, col("q"), str(tmp_path / "out.parquet")), kwargs={"options": options, "rows": 40}
    )
    job.start()
    pictures: list[dict[str, Any]] = []
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and job.is_alive() and not under_way(pictures):
            pictures += top()["jobs"]
    finally:
        job.join()
    ((picture, one),) = under_way(pictures)
    assert (picture["rows"], picture["model"], picture["pid"]) == (40, smollm2, os.getpid())
    assert picture["output"] == str(tmp_path / "out.parquet")
    assert (one["state"], one["deaths"], one["silent"]) == ("ready", 0, False)
    assert one["running"] + one["waiting"] + one["done"] == 40
    assert top() == {"jobs": []}
    added = engine.figures()[0].since(before)
    assert (added.done, added.completion_tokens, added.running, added.waiting) == (40, 1600, 0, 0)


def ray_command(tiny: str, folder: Path, temporary: Path, *more: str) -> subprocess.Popen[str]:
    """Start a job of 250 rows on a Ray cluster of its own."""
    (folder / "in.csv").write_text("text\n" + "".join(f"number {i}\n" for i in range(250)), encoding="utf-8")
    command = [sys.executable, "-c", "from daft_vllm.cli import app; app()", "run"]
    command += ["--input", str(folder / "in.csv"), "--output", str(folder / "out.parquet")]
    command += ["--model", tiny, "--gpus", "0", "--prompt", "Tell about {text}", "--max-tokens", "300", "--ignore-eos"]
    command += ["--engine-args", json.dumps({**TINY_ARGS, "max_num_seqs": 64}), "--batch-size", "100", *more]
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "DAFT_RUNNER": "ray", "TMPDIR": str(temporary), "PYTHONPATH": paths, "COLUMNS": "200"}
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)


def watched(running: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """Return pictures of a job, up to the first with an engine at work."""
    pictures: list[dict[str, Any]] = []
    while running.poll() is None and not under_way(pictures):
        pictures += top()["jobs"]
        time.sleep(0.2)
    return pictures


def test_counters_come_back_from_ray(tiny: str, tmp_path: Path, temporary: Path) -> None:
    """While the job runs, and in its summary, through the board alone."""
    running = ray_command(tiny, tmp_path, temporary, "--no-store")
    pictures = watched(running)
    said = running.communicate(timeout=120)[1]
    assert running.returncode == 0, said[-3000:]
    assert pq.read_table(tmp_path / "out.parquet")["error"].null_count == 250
    table = " ".join(said.replace("│", " ").split())
    assert "completion tokens 75000" in table
    assert "unknown" not in table
    ((job, one),) = under_way(pictures)
    assert (job["rows"], job["model"], one["model"]) == (250, tiny, tiny)
    assert one["process"].startswith("ray-")


@pytest.mark.slow
def test_a_signal_reaches_engines_on_ray(tiny: str, tmp_path: Path, temporary: Path) -> None:
    """Rows inside vLLM finish, and their answers are in the store; the same command goes on."""
    store = tmp_path / "store"
    running = ray_command(tiny, tmp_path, temporary, "--store", str(store))
    ((job, one),) = under_way(watched(running))
    running.send_signal(signal.SIGTERM)
    said = running.communicate(timeout=60)[1]
    assert running.returncode == 143, said[-3000:]
    found = re.search(r"(\d+) answers are kept in", said)
    assert found is not None, said[-3000:]
    assert job["done"] + one["running"] <= int(found[1]) < 250
    again = ray_command(tiny, tmp_path, temporary, "--store", str(store))
    said = again.communicate(timeout=120)[1]
    assert again.returncode == 0, said[-3000:]
    assert f"rows whose answer was in the store {found[1]}" in " ".join(said.replace("│", " ").split())
