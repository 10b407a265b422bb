"""The end of a process that Daft starts for a UDF: quick, whatever the engine does."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

LEAVES = """
import atexit, sys, time, types
from daft_vllm.udf.worker import leaving
sys.modules["__main__"].__spec__ = types.SimpleNamespace(name={name!r})
leaving.LEAVE_SECONDS = 0.2
atexit.register(print, "torch")
leaving.leave_quickly(lambda: print("before the engine"))
atexit.register(print, "engine")
leaving.leave_quickly({close})
"""


@pytest.mark.parametrize(
    ("name", "close", "printed"),
    [
        ("daft.execution.udf_worker", 'lambda: print("killed")', ["killed"]),
        ("daft.execution.udf_worker", "lambda: [][0]", []),
        ("daft.execution.udf_worker", "lambda: time.sleep(3600)", []),
        ("script", 'lambda: print("killed")', ["engine", "torch"]),
    ],
)
def test_what_runs_at_the_end(name: str, close: str, printed: list[str]) -> None:
    code = textwrap.dedent(LEAVES).format(name=name, close=close)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == printed
    assert not done.stderr
