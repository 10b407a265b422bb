"""Folders for the time of a job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from daft_vllm import folders
from daft_vllm.folders import held_folder

KILLED = """
import os, signal, sys
from daft_vllm.folders import held_folder
with held_folder("daft-vllm-test-") as folder:
    print(folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_leaves_goes_and_what_another_holds_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(folders, "_NEW_SECONDS", 0)
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", KILLED], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr
    left = Path(done.stdout.strip())
    assert left.is_dir()
    with held_folder("daft-vllm-test-") as first:
        assert not left.exists()
        with held_folder("daft-vllm-test-"):
            assert Path(first).is_dir()
            assert len(list(tmp_path.iterdir())) == 2
    assert list(tmp_path.iterdir()) == []
