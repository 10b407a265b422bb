"""Thinking budgets and LoRA adapters by row: the same answers from both of vLLM's runners, on a shrunken Qwen3."""

from __future__ import annotations

from typing import Any

import daft
import pytest
from daft import col

from benchmarks import shrunken
from daft_vllm import prompt
from tests.gpu_runner import MARKS
from tests.gpu_runner.runners import ARGS, FIXED, of_both, told
from tests.udf.test_adapters import write_adapter
from tests.udf.test_thinking import TEMPLATE, Mood

pytestmark = MARKS
BUDGETS = [0, 3, 8, None, 3]
ADAPTERS = [None, "a0", "a1", "a0", "a2"]
CASES: dict[str, dict[str, Any]] = {
    "no thinking": {"return_format": Mood, "max_tokens": 24},
    "thinking that is cut off": {"return_format": Mood, "thinking": True, "max_tokens": 6},
    "budgets, then a format": {
        "return_format": Mood,
        "thinking": True,
        "thinking_token_budget": col("budget"),
        "max_tokens": 32,
    },
    "budgets, then a text": {"thinking": True, "thinking_token_budget": col("budget"), "max_tokens": 12},
    "budgets beside other options": {
        "thinking": True,
        "thinking_token_budget": 2,
        "repetition_penalty": 1.5,
        "logit_bias": {700: 5.0},
        "stop_token_ids": [5],
        "min_tokens": 6,
        "max_tokens": 10,
    },
    "the bare model": {"adapter": None},
    "one adapter": {"adapter": "a1"},
    "adapters by row": {"adapter": col("adapter")},
    "adapters by row, computed again": {"adapter": col("adapter"), "dedupe": False},
    "adapters by row, with budgets and a format": {
        "adapter": col("adapter"),
        "return_format": Mood,
        "thinking": True,
        "thinking_token_budget": 3,
        "max_tokens": 32,
    },
}


@pytest.fixture(scope="module")
def found(smollm2: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, list[dict[str, Any]]]]:
    folder = tmp_path_factory.mktemp("qwen3")
    fixed = {
        "model": shrunken.qwen3(smollm2, folder / "model"),
        "engine_args": {**ARGS, "max_model_len": 512, "load_format": "dummy", "reasoning_parser": "qwen3"},
        "chat_template": TEMPLATE,
        "adapters": {
            f"a{i}": write_adapter(folder / f"a{i}", i, rank=4 + 4 * i, projection="o_proj") for i in range(3)
        },
        "max_tokens": 6,
    }
    start = "The same beginning, of several blocks. " * 20
    questions = [start + end for end in ("Waves of ten metres.", "No wind.", "A breeze.", "A storm.", "No wind.")]
    df = daft.from_pydict({"id": list(range(5)), "q": questions, "budget": BUDGETS, "adapter": ADAPTERS})

    def ask() -> dict[str, list[dict[str, Any]]]:
        answers = {}
        for name, options in CASES.items():
            rows = df.select("id", prompt(col("q"), **(FIXED | fixed | options)).alias("a")).to_pylist()
            assert [row["id"] for row in rows] == list(range(5))
            answers[name] = told(rows)
        return answers

    return of_both(ask)


@pytest.mark.parametrize("name", CASES)
def test_the_same_answers(found: dict[str, dict[str, list[dict[str, Any]]]], name: str) -> None:
    assert found["V2"][name] == found["V1"][name]


def test_budgets_have_an_effect(found: dict[str, dict[str, list[dict[str, Any]]]]) -> None:
    rows = found["V2"]["budgets, then a format"]
    for budget, row in zip(BUDGETS, rows, strict=True):
        if budget is None:
            assert row["error"].startswith("truncated")
        else:
            assert row["value"]["mood"] in ("calm", "stormy")
    assert rows[0]["reasoning"] == ""
    assert 0 < len(rows[1]["reasoning"]) < len(rows[2]["reasoning"])


def test_adapters_have_an_effect(found: dict[str, dict[str, list[dict[str, Any]]]]) -> None:
    """Each row as if its adapter were the only one, and nothing from the cache of another."""
    mixed, bare, one = (found["V2"][name] for name in ("adapters by row", "the bare model", "one adapter"))
    assert mixed[0]["text"] == bare[0]["text"]
    assert mixed[2]["text"] == one[2]["text"] != bare[2]["text"]
    assert len({row["text"] for row in mixed[:3]}) == 3
    assert mixed[4]["cached_tokens"] == 0 < mixed[3]["cached_tokens"]
