"""What the tests of stores share."""

from __future__ import annotations

from typing import Any

import pytest

from daft_vllm.engine import OfflineEngine


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each batch gave to an engine. What the engine is asked to check it doesn't count."""
    seen: list[int] = []
    original = OfflineEngine.submit

    def submit(self: OfflineEngine, requests: Any, **options: Any) -> Any:
        if options.get("each") is not None:
            seen.append(len(requests))
        return original(self, requests, **options)

    monkeypatch.setattr(OfflineEngine, "submit", submit)
    return seen
