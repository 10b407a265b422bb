"""What killed engines leave is removed by the next engine, and what a living one has is not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from daft_vllm.engine.setup.guardian import kill_processes
from daft_vllm.folders import SHARED_MEMORY, remove_unheld
from tests.conftest import TINY_ARGS

pytest.importorskip("vllm")

NEXT = "from daft_vllm.engine.setup.environment import prepare_environment; prepare_environment(cpu=True)"
OWNER = """
import multiprocessing, os, sys
from multiprocessing.shared_memory import SharedMemory
from daft_vllm.engine.setup.environment import prepare_environment
prepare_environment(cpu=True)
from daft_vllm.engine.patches.leftovers import name_leftovers
name_leftovers()
from vllm.v1.executor.uniproc_executor import get_file_store_init_method
open(get_file_store_init_method().removeprefix("file://"), "w").close()
memory = SharedMemory(create=True, size=10)
lock = multiprocessing.get_context("spawn").Lock()
print(os.environ["VLLM_RPC_BASE_PATH"], flush=True)
sys.stdin.read()
"""
ENGINE = """
import json, os, sys
from daft_vllm import EngineConfig, OfflineEngine, Request, SamplingOptions
from daft_vllm.engine.patches import registry

if __name__ == "__main__":
    # With the executor of vLLM, as on several GPUs: workers, shared memory and semaphores.
    left_out = lambda state: state._replace(problem="left out") if state.patch.name == "executor" else state
    registry._installed_states = lambda states=[*map(left_out, registry.states())]: states
    with OfflineEngine(EngineConfig(sys.argv[1], json.loads(sys.argv[2]))) as engine:
        print(os.environ["VLLM_RPC_BASE_PATH"], flush=True)
        sys.stdin.readline()
        print(engine.run([Request("hello", sampling=SamplingOptions(max_tokens=4))])[0].error, flush=True)
"""


@pytest.fixture
def short() -> Iterator[Path]:
    """A temporary folder with a short path: vLLM has sockets in it."""
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def start(code: str, short: Path, *args: str) -> tuple[subprocess.Popen[str], Path]:
    """Start an owner of leftovers, and return it with its folder, when it has some."""
    environment = {name: value for name, value in os.environ.items() if name != "VLLM_RPC_BASE_PATH"}
    script = short / "owner.py"
    script.write_text(code, encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, str(script), *args],
        env={**environment, "TMPDIR": str(short)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def memory_of(folder: Path) -> set[str]:
    return {path.name.replace(folder.name, "") for path in SHARED_MEMORY.glob(f"*{folder.name}*")}


def files_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()] if folder.is_dir() else []


def start_next(short: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "VLLM_RPC_BASE_PATH"}
    subprocess.run([sys.executable, "-c", NEXT], env={**environment, "TMPDIR": str(short)}, check=True, timeout=60)


def test_what_a_killed_process_leaves_goes_and_what_a_living_one_has_stays(short: Path) -> None:
    killed, its_folder = start(OWNER, short)
    living, other = start(OWNER, short)
    for folder in (its_folder, other):
        assert len(memory_of(folder)) == 2
        assert [name[:10] for name in files_in(folder)] == ["vllm_dist_"]
    assert kill_processes([psutil.Process(killed.pid)]) == []
    killed.wait()
    assert len(memory_of(its_folder)) == 2, "Python's resource tracker was killed too"
    stopped = psutil.Process(living.pid)
    stopped.send_signal(signal.SIGSTOP)  # alive, but it does nothing any more
    start_next(short)
    assert (its_folder.exists(), memory_of(its_folder)) == (False, set())
    assert (len(files_in(other)), len(memory_of(other))) == (1, 2)
    stopped.send_signal(signal.SIGCONT)
    living.communicate("", timeout=30)
    assert living.returncode == 0
    assert (other.exists(), memory_of(other)) == (False, set())


def test_folders_of_others_and_links_stay(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, linked, elsewhere = (short / name for name in ("own-1", "own-2", "other"))
    for folder in (ours, elsewhere):
        folder.mkdir()
    linked.symlink_to(elsewhere)
    (short / "own-3").write_text("a file")
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: 12345)
        remove_unheld(short, "own-")
        assert ours.exists()
    remove_unheld(short, "own-", seconds=60)
    assert ours.exists(), "it may have been made a moment ago"
    remove_unheld(short, "own-")
    assert sorted(path.name for path in short.iterdir()) == ["other", "own-2", "own-3"]


@pytest.mark.slow
def test_so_it_is_with_vllms_workers(short: Path, tiny: str) -> None:
    args = (tiny, json.dumps(TINY_ARGS))
    killed, its_folder = start(ENGINE, short, *args)
    living, other = start(ENGINE, short, *args)
    for folder in (its_folder, other):
        assert len(memory_of(folder)) >= 2, "a queue and a lock"
        assert any(name.startswith("vllm_dist_") for name in files_in(folder))
    kill_processes([psutil.Process(killed.pid)])
    killed.wait()
    start_next(short)
    assert (its_folder.exists(), memory_of(its_folder)) == (False, set())
    assert living.communicate("go on\n", timeout=60)[0].strip() == "None"
    assert (other.exists(), memory_of(other)) == (False, set())
    assert not [path.name for path in short.glob("vllm_dist_*")]
