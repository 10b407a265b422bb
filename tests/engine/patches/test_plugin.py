"""What the plugin does in a process of vLLM."""

from __future__ import annotations

import subprocess
import sys

KILLED = """
import io, multiprocessing, os, signal
from daft_vllm.engine.patches.plugin import register
from daft_vllm.engine.setup.guardian import OWNER_PID
multiprocessing.set_start_method("spawn")  # as in a process that multiprocessing has spawned
os.environ[OWNER_PID] = "1"
register()
from tqdm import tqdm
list(tqdm([1], file=io.StringIO()))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_no_semaphore_of_a_bar() -> None:
    """Python's resource tracker would warn of it on the user's screen."""
    done = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, timeout=120, check=False)
    assert done.stderr == ""
    assert done.returncode == -9
