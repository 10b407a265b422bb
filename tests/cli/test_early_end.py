"""``daft-vllm run`` that ends early: what is kept, what is said, how it goes on, and that nothing is left behind."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from benchmarks.parts.kills import stored
from daft_vllm.cli import app
from daft_vllm.engine.setup.guardian import kill_processes
from daft_vllm.tables.placing import Claim
from tests.helpers import wait_gone

ROWS = 240
# A shell starts background jobs with Ctrl-C ignored, and so is everything that such a pytest starts.
COMMAND = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from daft_vllm.cli import app
if __name__ == "__main__":
    app()
"""
ENGINE = {"max_model_len": 512, "kv_cache_memory_bytes": 256 << 20, "dtype": "float32", "max_num_seqs": 16}


class Job:
    """One command, run any number of times."""

    def __init__(self, folder: Path, model: str, *more: str, output: str = "out.parquet") -> None:
        self.folder = folder
        self.output = folder / output
        self.store = folder / f"{output.rstrip('/')}.answers-store"
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        noise = random.Random(0)  # so that no format makes the table small
        rows = [f"{i},number {i},{noise.randbytes(60).hex()}\n" for i in range(ROWS)]
        (folder / "in.csv").write_text("id,text,noise\n" + "".join(rows))
        (folder / "job.py").write_text(COMMAND)
        self.command = [sys.executable, str(folder / "job.py"), "run", "--input", str(folder / "in.csv")]
        self.command += ["--output", f"{folder}/{output}", "--prompt", "Write about {text}.", "--model", model]
        self.command += ["--gpus", "0", "--max-tokens", "24", "--ignore-eos", "--no-dedupe", *more]
        self.command += ["--engine-args", json.dumps(ENGINE)]
        self.pids: set[int] = set()

    def start(self, *more: str, background: bool = False) -> subprocess.Popen[str]:
        env = {**os.environ, "TMPDIR": str(self.temporary), "COLUMNS": "200"}
        # A shell lets a job in the background ignore Ctrl-C.
        before = ["bash", "-c", "trap '' INT; exec \"$@\"", "_"] if background else []
        return subprocess.Popen(
            [*before, *self.command, *more], stderr=subprocess.PIPE, text=True, start_new_session=True, env=env
        )

    def run(self, *more: str) -> tuple[int, str]:
        return self.end(self.start(*more))

    def end(self, running: subprocess.Popen[str], seconds: float = 300) -> tuple[int, str]:
        """Wait for a run, and return its exit status and what it said on one line."""
        said = running.communicate(timeout=seconds)[1]
        return running.returncode, " ".join(said.split())

    def wait(self, running: subprocess.Popen[str], answers: int) -> None:
        """Return when so many answers are stored."""
        deadline = time.monotonic() + 300
        while stored(self.store) < answers:
            assert running.poll() is None, self.end(running)
            assert time.monotonic() < deadline
            time.sleep(0.05)
        self.pids |= {process.pid for process in psutil.Process(running.pid).children(recursive=True)}

    def check_nothing_is_left(self, *, but: str = "torchinductor_root") -> None:
        """No process, no temporary file, no hidden folder, no half of an output, ``but`` files of killed ones."""
        assert wait_gone(self.pids) == []
        others = [path.name for path in self.temporary.iterdir()]
        # Torch's cache; and a file of vLLM's core, if it was killed.
        assert [one for one in others if not re.match(rf"torchinductor_root$|vllm_dist|{but}", one)] == []
        assert not list(self.folder.glob(".*"))

    def check_complete(self) -> None:
        table = pq.read_table(self.output)
        assert sorted(table["id"].to_pylist()) == list(range(ROWS))
        assert table["error"].null_count == ROWS
        assert not self.store.exists()


@pytest.fixture
def children() -> Iterator[None]:
    yield
    kill_processes([p for p in psutil.Process().children() if "job.py" in " ".join(p.cmdline())])


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["driver", "process"])
def test_stopped_by_signals_and_resumed(smollm2: str, tmp_path: Path, mode: str, children: None) -> None:
    job = Job(tmp_path, smollm2, *(["--keep-order"] if mode == "process" else []))

    # Ctrl-C in a terminal goes to the whole group of processes.
    running = job.start(background=mode == "driver")
    job.wait(running, 20)
    before = stored(job.store)
    began = time.monotonic()
    os.killpg(running.pid, signal.SIGINT)
    status, said = job.end(running, 60)
    assert status == 130, said
    assert time.monotonic() - began < 20
    kept = stored(job.store)
    assert before < kept < ROWS - 50, "rows inside vLLM have finished, and no others"
    assert f"stopped by Ctrl-C. {kept} answers are kept in {job.store}: the same command with --resume goes on." in said
    for word in ("Traceback", "started again", "leaked"):
        assert word not in said, said
    assert not job.output.exists()
    job.check_nothing_is_left()

    # The next run has to be told what to do.
    status, said = job.run()
    assert status == 1
    assert f"an earlier job with this output stopped, and {kept} answers are kept in {job.store}: pass --resume" in said
    status, said = job.run("--resume", "--max-tokens", "25")
    assert status == 1
    assert "max_tokens was '24', and is '25'" in said
    assert stored(job.store) == kept

    # A notice that the machine goes away.
    running = job.start("--resume")
    job.wait(running, kept + 20)
    running.send_signal(signal.SIGTERM)
    status, said = job.end(running, 60)
    assert status == 143, said
    assert "stopped by SIGTERM." in said
    assert not job.output.exists()
    job.check_nothing_is_left()

    kept = stored(job.store)
    status, said = job.run("--resume")
    assert status == 0, said
    assert f"rows whose answer was in the store │ {kept} " in said
    job.check_complete()
    job.check_nothing_is_left()
    status, said = job.run("--resume")
    assert (status, said) == (0, f"{job.output} is complete already: nothing to do. --overwrite computes it anew.")


@pytest.mark.slow
def test_ctrl_c_twice_ends_at_once(smollm2: str, tmp_path: Path, children: None) -> None:
    job = Job(tmp_path, smollm2, "--max-tokens", "400", output="out/")
    running = job.start()
    time.sleep(1)
    deadline = time.monotonic() + 200
    while not any("VLLM::" in " ".join(p.cmdline()) for p in psutil.Process(running.pid).children(recursive=True)):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    while not re.search('"in_flight": [1-9]', "".join(p.read_text() for p in job.temporary.glob("*/*.json"))):
        assert running.poll() is None
        time.sleep(0.1)
    job.pids = {process.pid for process in psutil.Process(running.pid).children(recursive=True)}
    began = time.monotonic()
    os.killpg(running.pid, signal.SIGINT)
    time.sleep(1)
    assert running.poll() is None, "rows may finish"
    os.killpg(running.pid, signal.SIGINT)
    status, said = job.end(running, 60)
    assert status == 130, said
    assert time.monotonic() - began < 8
    assert "Ctrl-C again stops at once" in said
    job.check_nothing_is_left()


@pytest.mark.slow
def test_a_killed_process_of_daft_is_started_again(smollm2: str, tmp_path: Path, children: None) -> None:
    """As the kernel does if memory runs out. No row is lost or doubled."""
    job = Job(tmp_path, smollm2, "--keep-order")
    running = job.start()
    job.wait(running, 30)
    (udf,) = (p for p in psutil.Process(running.pid).children() if "udf_worker" in " ".join(p.cmdline()))
    udf.kill()
    status, said = job.end(running)
    assert status == 0, said
    assert "The process with the engine is gone: something has killed it" in said
    assert "goes on from its store, for the 1. of at most 5 times" in said
    assert pq.read_table(job.output)["id"].to_pylist() == list(range(ROWS))
    job.check_complete()
    job.check_nothing_is_left(but=rf"daft-vllm-{udf.pid}-\w+\.log$")

    running = job.start("--overwrite", "--no-store")
    time.sleep(5)
    while not (found := [p for p in psutil.Process(running.pid).children() if "udf_worker" in " ".join(p.cmdline())]):
        time.sleep(0.1)
    time.sleep(10)
    found[0].kill()
    status, said = job.end(running)
    assert status == 1
    assert "error: the process with the engine is gone, with rows unanswered: something has killed it" in said
    job.check_complete()  # the output of before


@pytest.mark.slow
def test_a_killed_command_leaves_no_process_and_goes_on(smollm2: str, tmp_path: Path, children: None) -> None:
    job = Job(tmp_path, smollm2, "--keep-order", output="out/")
    running = job.start()
    job.wait(running, 20)
    running.kill()
    running.communicate()
    assert wait_gone(job.pids) == []
    assert not job.output.exists()
    status, said = job.run("--resume")
    assert status == 0, said
    job.check_complete()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.slow
@pytest.mark.parametrize(("output", "kilobytes"), [("out.parquet", 12), ("out/", 12), ("out.parquet", 60)])
def test_a_disk_that_fills_up(smollm2: str, tmp_path: Path, output: str, kilobytes: int, children: None) -> None:
    """With little room it is the output that doesn't fit; with more, the store beside it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(disk)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a disk can't be mounted here")
    try:
        store = tmp_path / "store" if kilobytes < 20 else disk / f"{output}.answers-store"
        job = Job(tmp_path, smollm2, *(["--store", str(store)] if kilobytes < 20 else []))
        job.command[job.command.index("--output") + 1] = f"{disk}/{output}"
        status, said = job.run()
        assert status == 1
        place = f"{disk}/{output.rstrip('/')}"
        what = f"rows can't be written to '{place}'" if kilobytes < 20 else f"can't be written to the store {store}"
        assert what in said
        assert "no space left on device" in said.lower()
        kept = stored(store)
        goes_on = "" if kilobytes < 20 else " with --resume"
        assert f"{kept} answers are kept in {store}: the same command{goes_on} goes on." in said
        assert "Traceback" not in said
        assert kept
        assert [path for path in disk.iterdir() if path != store] == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


# Without an engine.


def command_of(folder: Path, *more: str) -> list[str]:
    if not (folder / "in.csv").exists():
        (folder / "in.csv").write_text("text\na\n")
    command = ["run", "--input", str(folder / "in.csv"), "--output", str(folder / "out.csv"), "--prompt", "{text}"]
    return [*command, "--gpus", "0", *more]


def answered(folder: Path) -> Path:
    """Make a store with an answer, as a job that stopped leaves it."""
    from daft_vllm.engine.requests.outcome import Outcome
    from daft_vllm.engine.store.answers import AnswerStore
    from daft_vllm.engine.store.codec import Record
    from daft_vllm.engine.store.manifest import open_folder

    store = folder / "out.csv.answers-store"
    open_folder(store, {"prompt": "another one"})
    answers = AnswerStore(store)
    answers.append(Record(b"k" * 16, 0, 1, Outcome(text="answer")))
    answers.close()
    return store


def said(result: Any) -> str:
    return " ".join(result.stderr.split())


def test_the_store_of_an_earlier_job(tmp_path: Path) -> None:
    store = answered(tmp_path)
    result = CliRunner().invoke(app, command_of(tmp_path))
    assert result.exit_code == 1
    assert f"and 1 answer is kept in {store}: pass --resume to go on, or --overwrite to begin anew" in said(result)
    result = CliRunner().invoke(app, command_of(tmp_path, "--resume"))
    assert "has the answers of a job that asked something else" in said(result)
    assert stored(store) == 1
    result = CliRunner().invoke(app, command_of(tmp_path, "--overwrite", "--model", "./nothing"))
    assert "no model folder" in said(result)
    assert not store.exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--no-store", "--resume"], "--no-store and --resume exclude each other"),
        (["--no-store", "--store", "s"], "--no-store and --store exclude each other"),
        (["--output", "s3://bucket/nothing/", "--resume"], "those that write to a URL, have one only if it is named"),
    ],
)
def test_options_that_contradict_each_other(tmp_path: Path, more: list[str], message: str) -> None:
    result = CliRunner().invoke(app, command_of(tmp_path, *more))
    assert result.exit_code == 1
    assert message in said(result)


def test_a_complete_output_is_left_alone(tmp_path: Path) -> None:
    output = tmp_path / "out.csv"
    output.write_text("text,answer\n")
    result = CliRunner().invoke(app, command_of(tmp_path, "--resume"))
    assert (result.exit_code, output.read_text()) == (0, "text,answer\n")
    assert "is complete already: nothing to do" in said(result)

    # The store is that of a job that was to replace it, or of the one that has just written it.
    store = answered(tmp_path)
    result = CliRunner().invoke(app, command_of(tmp_path, "--resume"))
    assert result.exit_code == 1
    assert "pass --overwrite --resume to go on with that" in said(result)
    status = output.stat()
    same = [status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size]
    (store / ".complete").write_text(json.dumps(same))
    assert CliRunner().invoke(app, command_of(tmp_path, "--resume")).exit_code == 0
    assert not store.exists()


def test_a_second_job_with_the_same_output_is_refused(tmp_path: Path) -> None:
    claim = Claim(tmp_path / "out.csv")
    for more in ([], ["--resume"], ["--overwrite"]):
        result = CliRunner().invoke(app, command_of(tmp_path, *more))
        assert result.exit_code == 1
        assert "another job writes" in said(result)
    claim.release()


def test_a_store_that_cannot_be_made_is_said_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "out.csv.answers-store").write_text("a file of the user's")
    result = CliRunner().invoke(app, command_of(tmp_path))
    assert result.exit_code == 1
    assert "can't be made" in said(result)
    assert "Pass --store FOLDER to keep answers elsewhere, or --no-store to keep none." in said(result)
    assert (tmp_path / "out.csv.answers-store").read_text() == "a file of the user's"


def test_a_deadline_keeps_the_store_for_the_rows_that_it_cut_off(tmp_path: Path, smollm2: str) -> None:
    """It has come already here, so no model is loaded."""
    (tmp_path / "t.csv").write_text("text\none\ntwo\n")
    command = ["run", "--input", str(tmp_path / "t.csv"), "--prompt", "{text}", "--output", str(tmp_path / "out.csv")]
    command += ["--model", smollm2, "--gpus", "0", "--max-concurrency", "auto", "--deadline", "2020-01-01T00:00"]
    done = CliRunner().invoke(app, command, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    assert (tmp_path / "out.csv").read_text().count("deadline: the deadline, 2020-01-01") == 2
    assert "--overwrite --resume answers the other rows" in said(done)
    assert (tmp_path / "out.csv.answers-store" / "job.json").exists()
    refused = CliRunner().invoke(app, [*command, "--resume"], env={"COLUMNS": "200"})
    assert refused.exit_code == 1
    assert "lacks the answers that its deadline cut off: pass --overwrite --resume" in said(refused)
    again = CliRunner().invoke(app, [*command, "--overwrite", "--resume"], env={"COLUMNS": "200"})
    assert again.exit_code == 0, again.output
