"""Only ``make gpu-check`` has the libraries that these tests need."""

from __future__ import annotations

import pytest

from tests.gpu_check.cards import fake_gpus


@pytest.fixture(autouse=True)
def one_l4(monkeypatch: pytest.MonkeyPatch) -> None:
    """One L4, and no mask."""
    monkeypatch.setenv("FAKE_GPUS", fake_gpus("l4"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all of these tests."""
    for item in items:
        if "gpu_check" in item.nodeid:
            item.add_marker(pytest.mark.gpu_check)
