"""Thinking is split off, and left out unless it is asked for; on a shrunken Qwen3 with random weights."""

from __future__ import annotations

from typing import Any, Literal

import daft
import pytest
from daft import col
from pydantic import BaseModel

from benchmarks import shrunken
from daft_vllm import prompt
from daft_vllm.errors import OptionError
from tests.conftest import TINY_ARGS

pytestmark = pytest.mark.other_engine
ARGS = {**TINY_ARGS, "reasoning_parser": "qwen3"}
# As that of Qwen3's thinking models: random weights would never begin to think by themselves.
TEMPLATE = shrunken.QWEN_TEMPLATE.replace("{{ '<|im_start|>assistant\n' }}", "{{ '<|im_start|>assistant\n<think>\n' }}")


class Mood(BaseModel):
    mood: Literal["calm", "stormy"]


@pytest.fixture(scope="module")
def qwen3(smollm2: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    return shrunken.qwen3(smollm2, tmp_path_factory.mktemp("qwen3"))


def answered(model: str, **options: Any) -> list[dict[str, Any]]:
    df = daft.from_pydict({"id": [0, 1, 2], "q": ["Waves of ten metres.", "No wind.", "A breeze."], "n": [0, 5, 20]})
    fixed = {"model": model, "engine_args": ARGS, "gpus": 0, "use_process": False, "chat_template": TEMPLATE}
    answer = prompt(col("q"), Mood, details=True, **fixed, **options)
    return [row["a"] for row in df.select("id", answer.alias("a")).sort("id").to_pylist()]


def test_thinking_without_end_is_cut_off_and_kept(qwen3: str) -> None:
    assert "<think>\n' }}" in TEMPLATE
    for row in answered(qwen3, thinking=True, max_tokens=12):
        assert row["error"].startswith("truncated")
        assert row["value"] is None
        assert row["reasoning"] is not None


def test_a_budget_ends_the_thinking_and_the_answer_follows(qwen3: str) -> None:
    """Each row its own; what follows is held to the format, and the reasoning is apart from it."""
    rows = answered(qwen3, thinking=True, thinking_token_budget=col("n"), max_tokens=60)
    for row in rows:
        assert row["error"] is None
        assert row["value"]["mood"] in ("calm", "stormy")
        assert row["text"].startswith("{")
    assert rows[0]["reasoning"] == ""
    assert rows[1]["completion_tokens"] < rows[2]["completion_tokens"]
    assert 0 < len(rows[1]["reasoning"]) < len(rows[2]["reasoning"])
    with pytest.raises(OptionError, match="thinking=True"):
        prompt(col("q"), thinking_token_budget=10, gpus=0)


def test_no_thinking_unless_asked(qwen3: str) -> None:
    for row in answered(qwen3, max_tokens=60):
        assert row["value"]["mood"] in ("calm", "stormy")
        assert row["reasoning"] is None
