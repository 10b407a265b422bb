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
from daft_vllm.udf.worker.leaving import stand_alone

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
    daft.from_pydict({"a": [1]}).select(Slow()(daft.col("a"))).collect()
"""


def test_a_process_of_daft_outlives_ctrl_c_but_not_its_script(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    mark = tmp_path / "mark"
    script = subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py"), str(mark)],
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
    assert os.getpgid(udf.pid) != os.getpgid(script.pid)
    os.kill(script.pid, signal.SIGKILL)
    script.wait()
    assert wait_gone([udf.pid], 5) == []
