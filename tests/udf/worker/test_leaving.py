"""A process that Daft started ends with the process that started it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

WORKER = """
import pathlib, sys, threading, time
from types import SimpleNamespace
from daft_vllm.udf.worker import leaving

held = threading.Lock()
sys.modules["__main__"].__spec__ = SimpleNamespace(name="daft.execution.udf_worker")
leaving.LEAVE_SECONDS = 1.0

def close():
    pathlib.Path(sys.argv[1]).touch()
    if sys.argv[2] == "loads":  # the lock of the engines is held while a model loads
        held.acquire()

held.acquire()
for _ in range(2):
    leaving.stand_alone()
    leaving.leave_quickly(close)
print(sum(one.name == "daft-vllm-parent" for one in threading.enumerate()), flush=True)
time.sleep(60)
"""
DRIVER = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', *sys.argv[1:]]); time.sleep(60)"


@pytest.mark.parametrize("state", ["idle", "loads"])
def test_it_ends_when_its_parent_is_killed(tmp_path: Path, state: str) -> None:
    closed = tmp_path / "closed"
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, WORKER, str(closed), state], stdout=subprocess.PIPE, text=True
    )
    assert driver.stdout is not None
    assert driver.stdout.readline() == "1\n"
    (worker,) = psutil.Process(driver.pid).children()
    time.sleep(1.5)
    assert worker.is_running()
    assert not closed.exists()
    driver.kill()
    driver.wait()
    psutil.wait_procs([worker], timeout=8)
    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE
    assert closed.exists()
