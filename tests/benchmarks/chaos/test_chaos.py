"""The plan, the account and the table of ``benchmarks.chaos``; and one round of it on a real engine."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.chaos.account import Ground, answers_of, differences
from benchmarks.chaos.faults import FAULTS, Fault, Places, _damage_model, _damage_store, _fill_disk, _pause_core
from benchmarks.chaos.job import HOSTILE, jump, table
from benchmarks.chaos.plan import Planned, planned
from benchmarks.chaos.processes import Running
from benchmarks.chaos.records import Record, append, markdown, read
from benchmarks.chaos.rounds import Rounds, last_line, outcome_of
from benchmarks.parts.kills import twice_in
from daft_vllm.engine import Outcome
from daft_vllm.engine.store.answers import AnswerStore
from daft_vllm.engine.store.codec import Record as Stored

RECORD = Record(
    *(0, 1, 2, "core killed", "driver", 3, 9, "recovered in place", 0, "", 20.0, 0),
    left_processes=[],
    left_files=[],
    problems=[],
)


def fault(name: str) -> Fault:
    return next(one for one in FAULTS if one.name == name)


def test_a_plan_is_that_of_its_seed_and_has_every_fault() -> None:
    def first(seed: int) -> list[Planned]:
        return list(itertools.islice(planned(seed), 3 * len(FAULTS)))

    assert first(1) == first(1)
    assert first(1) != first(2)
    assert Counter(one.fault.name for one in first(1)) == {one.name: 3 for one in FAULTS}
    assert [one.number for one in first(1)] == list(range(3 * len(FAULTS)))
    assert all(one.mode in one.fault.modes for one in first(1))
    left = {one.name for one in FAULTS} - {"disk full"}
    assert {one.fault.name for one in itertools.islice(planned(1, left), 9)} == {"disk full"}
    assert list(planned(1, {one.name for one in FAULTS})) == []


def test_names_of_faults_are_their_own() -> None:
    assert len({one.name for one in FAULTS}) == len(FAULTS)
    assert all(one.strike or one.before or one.clock for one in FAULTS)


def test_the_table_is_the_same_and_has_every_hostile_cell() -> None:
    assert table(120) == table(120)
    cells = [cell for cell in table(120)["q"] if cell]
    assert len(set(cells)) == len(cells)
    assert table(120)["q"].count("") == 1
    for hostile in HOSTILE:
        assert any(cell == hostile or (hostile and cell and cell.startswith(hostile)) for cell in table(120)["q"])
    assert table(120)["id"] == list(range(120))


def test_rows_that_are_missing_twice_or_other_are_found(tmp_path: Path) -> None:
    rows = [
        {"id": 1, "a": {"value": "x", "error": None}},
        {"id": 2, "a": {"value": None, "error": "empty_prompt: the prompt is null"}},
    ]
    (tmp_path / "output").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "output" / "1.parquet")
    found = answers_of(tmp_path / "output")
    right = {1: ("x", ""), 2: (None, "empty_prompt")}
    assert differences(found, right) == []
    assert differences(found[:1], right) == ["1 rows missing, such as 2"]
    assert differences([*found, found[0]], right) == ["1 rows twice, such as 1"]
    assert differences([*found, (3, "x", "")], right) == ["1 rows unknown, such as 3"]
    assert differences([(1, "y", ""), found[1]], right) == ["1 rows other answers, such as 1"]


def fill(store: Path, keys: range) -> None:
    store.mkdir(exist_ok=True)
    answers = AnswerStore(store)
    for key in keys:
        answers.append(Stored(key.to_bytes(16, "big"), 0, 1, Outcome(text=str(key))))
    answers.close()


def test_answers_that_were_computed_twice_are_counted(tmp_path: Path) -> None:
    assert twice_in(tmp_path / "none") == 0
    fill(tmp_path / "s", range(10))
    assert twice_in(tmp_path / "s") == 0
    fill(tmp_path / "s", range(7, 12))
    assert twice_in(tmp_path / "s") == 3


def test_a_store_is_damaged_and_read_up_to_there(tmp_path: Path) -> None:
    for seed in range(20):
        store = tmp_path / f"s{seed}"
        fill(store, range(10))
        (path,) = store.iterdir()
        before = path.read_bytes()
        _damage_store(Places(store, tmp_path, tmp_path), random.Random(seed))()
        assert path.read_bytes() != before


def test_a_model_is_damaged_and_whole_again(tmp_path: Path) -> None:
    model = tmp_path / "m"
    model.mkdir()
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        (model / name).write_text(name * 10)
    before = {path.name: path.read_text() for path in model.iterdir()}
    undo = _damage_model(Places(tmp_path, tmp_path, model), random.Random(3))
    damaged = {path.name: path.read_text() for path in model.iterdir()}
    assert damaged.keys() == before.keys()
    assert damaged != before
    undo()
    assert {path.name: path.read_text() for path in model.iterdir()} == before


def test_what_is_left_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.chaos.account.CLEANING_SECONDS", 0.1)
    ground = Ground(tmp_path)
    for name in ("daft-vllm-1-x.log", "torchinductor_root", "ray", "tmpabc"):
        (tmp_path / name).touch()
    assert [name for name in ground.left() if not name.startswith("/dev/shm")] == []
    (tmp_path / "vllm_dist_1").touch()
    assert "vllm_dist_1" in ground.left()


SLEEPS = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); "


def started(code: str, folder: Path) -> Running:
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return Running(process, folder / "log")


def test_a_process_that_outlives_its_job_is_found_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.chaos.processes.LEFT_SECONDS", 0.5)
    running = started(SLEEPS + "print('ready', flush=True); time.sleep(60)", tmp_path)
    assert len(running.look()) == 2
    running.process.kill()
    running.process.wait()
    assert [name for name in running.left() if "sleep(60)" in name]
    time.sleep(0.2)
    assert running.left() == []


def test_all_of_a_job_is_killed_and_its_exit_code_is_known(tmp_path: Path) -> None:
    running = started(SLEEPS + "print('ready', flush=True); time.sleep(60)", tmp_path)
    running.kill()
    assert running.process.wait(timeout=10) == -9
    assert running.left() == []


def test_a_full_disk_is_one_for_the_process_that_writes(tmp_path: Path) -> None:
    fill(tmp_path / "s", range(10))
    (path,) = (tmp_path / "s").iterdir()
    code = f"print('ready', flush=True); input(); f = open({str(path)!r}, 'ab', 0)\\nwhile True: f.write(bytes(512))"
    process = subprocess.Popen(
        [sys.executable, "-c", code.replace("\\n", "\n")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    size = path.stat().st_size
    _fill_disk(Running(process, tmp_path / "log"), Places(tmp_path / "s", tmp_path, tmp_path), random.Random(1))
    _, said = process.communicate("\n", timeout=30)
    assert "File too large" in said
    assert size < path.stat().st_size <= size + 2000


def test_a_pause_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("benchmarks.chaos.faults.PAUSE_SECONDS", 0.1)
    running = started("import time; print('ready', flush=True); time.sleep(60)", tmp_path)
    one = psutil.Process(running.process.pid)
    monkeypatch.setattr(running, "cores", lambda: [one])
    _pause_core(running, Places(tmp_path, tmp_path, tmp_path), random.Random(1))
    assert one.status() != psutil.STATUS_STOPPED
    running.kill()
    running.process.wait()


def test_the_clock_jumps_and_the_monotonic_one_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("time", "time_ns"):
        monkeypatch.setattr(time, name, getattr(time, name))
    before, steady = time.time(), time.monotonic()
    jump(-86_400, after=-1)
    assert -86_401 < time.time() - before < -86_390
    assert time.time_ns() / 1e9 - before < -86_390
    assert time.monotonic() - steady < 10


def test_outcomes() -> None:
    killed, full = fault("whole job killed"), fault("disk full")
    assert outcome_of(killed, None, "") == "hung"
    assert outcome_of(killed, 0, "") == "recovered in place"
    assert outcome_of(killed, -9, "") == "ended, to be resumed"
    assert (
        outcome_of(full, 1, "E\nStoreError: answers can't be written to the store /s") == "refused with a clear error"
    )
    assert outcome_of(full, 1, "OSError: 27") == "ended with an unclear error"
    assert last_line("a\n b \n\n") == "b"
    assert last_line("") == ""


def test_records_are_kept_and_a_line_that_was_cut_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    bad = replace(
        RECORD, number=1, fault="disk full", outcome="hung", problems=["hung, which is not expected"], twice=2
    )
    append(path, RECORD)
    append(path, bad)
    with path.open("a") as file:
        file.write('{"number": 2, "se')
    assert read(path) == [RECORD, bad]
    assert read(tmp_path / "none") == []
    lines = markdown(read(path)).splitlines()
    assert lines[2:4] == ["| core killed | 1 | 1 | 0 | 0 | 0 | 0 | 20 |", "| disk full | 1 | 0 | 0 | 0 | 1 | 2 | 20 |"]
    assert lines[5] == "- round 1, disk full (driver): hung, which is not expected"


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a short path: vLLM has sockets in it."""
    with tempfile.TemporaryDirectory(prefix="chaos-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.slow
def test_a_job_that_is_killed_and_resumed_keeps_its_account(smollm2: str, short: Path) -> None:
    game = Rounds(short, 40, smollm2)
    game.undisturbed()
    assert len(game.right) == 40
    assert {error for _, error in game.right.values()} >= {"", "empty_prompt", "prompt_too_long"}
    killed = game.play(Planned(0, replace(fault("whole job killed"), early=False), "process", 1), seed=1)
    assert (killed.outcome, killed.problems) == ("ended, to be resumed", [])
    assert 0 < killed.after < 40
    resumed = game.play(Planned(1, fault("core killed"), "driver", 2), seed=1)
    assert (resumed.outcome, resumed.problems, resumed.before) == ("recovered in place", [], killed.after)
    assert not game.is_open
    assert os.listdir(short / "t") == [name for name in os.listdir(short / "t") if name.startswith("torchinductor_")]
