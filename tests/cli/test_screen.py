"""What the commands show on a screen beside their tables."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "command", [["models", "--gpu", "L4", "--takes", "image"], ["config", "mistral-small-3.2-24b"]]
)
def test_no_library_says_anything(command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from daft_vllm.cli import app; app()", *command],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stderr == ""
