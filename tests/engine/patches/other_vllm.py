"""Makes copies of vLLM that differ from the installed one in one file, as another release would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from daft_vllm.engine.setup.sources import package_folder


def changed_vllm(folder: Path, module: str, changes: dict[str, str]) -> Path:
    """Make a copy of the package ``vllm`` in ``folder``, with links to all files but one, and return its path.

    Args:
        folder: an empty folder. If it is on ``PYTHONPATH``, Python finds the copy.
        module: full name of the module that differs.
        changes: new texts, by the regular expressions that they replace. Each expression has to match.
    """
    real = package_folder("vllm")
    assert real is not None
    names = module.split(".")[1:]
    file = real.joinpath(*names).with_suffix(".py")
    file = file if file.is_file() else real.joinpath(*names, "__init__.py")
    text = file.read_text(encoding="utf-8")
    for pattern, new in changes.items():
        text, count = re.subn(pattern, new, text)
        assert count, pattern
    copy, place = folder / "vllm", real
    for name in (*file.relative_to(real).parts, None):
        copy.mkdir()
        for entry in place.iterdir():
            if entry.name not in (name, "__pycache__"):
                (copy / entry.name).symlink_to(entry)
        if name is None or name == file.name:
            break
        copy, place = copy / name, place / name
    (copy / file.name).write_text(text, encoding="utf-8")
    return folder / "vllm"


def run_beside(folder: Path, script: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run a script with the packages in ``folder`` before all others."""
    env = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, str(script), *args]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)
