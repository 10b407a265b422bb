"""Fixtures: a machine without GPU and hub, and the folder of a whole model."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU, no hub, and no look at what is changed in vLLM."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("daft_vllm.udf.preflight.machine.states", list)


@pytest.fixture
def model(smollm2: str, tmp_path: Path) -> Path:
    """A whole model whose files are links; a test replaces some of them."""
    folder = tmp_path / "model"
    shutil.copytree(smollm2, folder, copy_function=os.symlink)
    return folder
