"""Helper processes: Ctrl-C does not reach them, and they end with whoever started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from daft_vllm.children import start_child
from tests.helpers import wait_gone


@pytest.mark.parametrize("module", ["constraints.limits.killable_main"])
def test_a_child_is_in_a_group_of_its_own_and_ends_with_its_owner(module: str) -> None:
    process, connection = start_child(f"daft_vllm.engine.{module}", dict(os.environ))
    assert os.getpgid(process.pid) == process.pid != os.getpgrp()
    connection.close()
    assert process.wait(10) is not None


SCRIPT = """
import os, sys, time
import daft
from daft_vllm.udf.worker.leaving import HANDLES_SIGNALS, stand_alone

@daft.cls(use_process=True)
class Slow:
    @daft.method.batch(return_dtype=daft.DataType.int64())
    def __call__(self, column):
        stand_alone()
        open(os.environ["MARK"], "w").write(str(os.getpid()))
        time.sleep(60)
        return column

if __name__ == "__main__":
    os.environ["MARK"] = sys.argv[1]
    if sys.argv[2] == "True":
        os.environ[HANDLES_SIGNALS] = str(os.getpid())
    daft.from_pydict({"a": [1]}).select(Slow()(daft.col("a"))).collect()
"""


@pytest.mark.parametrize("handled", [True, False])
def test_a_process_of_daft_ends_with_its_script_and_with_ctrl_c_unless_that_is_handled(
    tmp_path: Path, handled: bool
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    mark = tmp_path / "mark"
    script = subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py"), str(mark), str(handled)],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 60
    while not (mark.exists() and mark.read_text()):
        assert script.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    udf = psutil.Process(int(mark.read_text()))
    assert (os.getpgid(udf.pid) != os.getpgid(script.pid)) == handled
    os.kill(script.pid, signal.SIGKILL)
    script.wait()
    assert wait_gone([udf.pid], 5) == []


KILLED = """
import os, signal
import daft
from daft_vllm.udf.worker.deaths import is_death, kill_udf_processes

@daft.cls(use_process=True)
class Killed:
    @daft.method.batch(return_dtype=daft.DataType.int64())
    def __call__(self, column):
        os.kill(os.getpid(), signal.SIGKILL)

@daft.func.batch(return_dtype=daft.DataType.int64())
def failing(column):
    raise OSError("Connection reset by peer")

if __name__ == "__main__":
    df = daft.from_pydict({"a": [1]})
    for column in (Killed()(daft.col("a")), failing(daft.col("a"))):
        try:
            df.select(column).collect()
        except Exception as e:
            print(is_death(e))
    kill_udf_processes()
"""


def test_the_death_of_a_process_of_daft_is_told_from_other_errors(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(KILLED)
    command = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["True", "False"], done.stderr
