"""The speculator that vLLM has to be given, so that it verifies tokens: it guesses none. The scheduler does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class NoProposer:
    """What vLLM's ``custom_class`` method takes."""

    def __init__(self, vllm_config: Any) -> None:
        pass

    def load_model(self, *args: Any, **options: Any) -> None:
        """Load nothing."""

    def propose(self, sampled_token_ids: Sequence[Sequence[int]], *args: Any, **options: Any) -> list[list[int]]:
        """Return no token for each sequence."""
        return [[] for _ in sampled_token_ids]
