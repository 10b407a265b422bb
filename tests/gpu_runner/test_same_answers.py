"""Every sampling option and both grammar libraries: the same answers from both of vLLM's runners."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Literal

import daft
import pytest
from daft import col
from pydantic import BaseModel, Field

from daft_vllm import EngineConfig, close_engines, prompt
from daft_vllm.udf.worker.engines import shared_engine
from tests.gpu_runner import MARKS

pytestmark = MARKS
QUESTIONS = ["Say hi", "What is 2+2?", "Name a colour", "Is water wet?"]
ARGS = {"max_model_len": 256, "dtype": "float32", "max_num_seqs": 4, "kv_cache_memory_bytes": 256 << 20}
RUNNER = "VLLM_USE_V2_MODEL_RUNNER"


class Number(BaseModel):
    """xgrammar takes it."""

    n: Literal[1, 2]


class Word(BaseModel):
    """llguidance takes the pattern."""

    word: str = Field(pattern="^[ab]{1,3}$", max_length=2)


# Each is greedy, or leaves no choice, so both runners must give the same tokens. top_k and top_p are missing: Triton's
# interpreter can't run vLLM's kernel for them ("'int' object has no attribute 'to'", Triton 3.7).
SAME: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "min_p": {"temperature": 1.5, "min_p": 1.0},
    "repetition_penalty": {"temperature": 0.0, "repetition_penalty": 1.5},
    "presence_penalty": {"temperature": 0.0, "presence_penalty": 1.5, "max_tokens": 8},
    "frequency_penalty": {"temperature": 0.0, "frequency_penalty": 1.5, "max_tokens": 8},
    "logit_bias": {"temperature": 0.0, "logit_bias": {9906: 100.0}},
    "allowed_token_ids": {"temperature": 0.0, "allowed_token_ids": list(range(500, 1500, 2))},
    "bad_words": {"temperature": 0.0, "bad_words": ["Hello", "The", "I"]},
    "min_tokens": {"temperature": 0.0, "min_tokens": 4, "allowed_token_ids": [2, 500, 501]},
    "stop": {"temperature": 0.0, "stop": ["e"]},
    "stop_token_ids": {"temperature": 0.0, "stop_token_ids": list(range(0, 49_000, 3))},
    "xgrammar": {"temperature": 0.0, "return_format": Number, "max_tokens": 16},
    "guidance": {"temperature": 0.0, "return_format": Word, "max_tokens": 16},
    "choices": {"temperature": 0.0, "return_format": ["blue", "yes", "four"]},
    "by row": {
        "temperature": col("heat"),
        "min_p": 1.0,
        "allowed_token_ids": col("allowed"),
        "repetition_penalty": col("penalty"),
    },
}
RANDOM: dict[str, dict[str, Any]] = {
    "seed": {"temperature": 1.0, "seed": 7},
    "the same seed": {"temperature": 1.0, "seed": 7},
    "another seed": {"temperature": 1.0, "seed": 8},
}


def answered(model: str, **options: Any) -> list[Any]:
    columns = {
        "id": list(range(len(QUESTIONS))),
        "q": QUESTIONS,
        "heat": [0.0, 1.0, 0.5, 2.0],
        "allowed": [[500, 502, 504], [700, 900], None, [1000, 1001]],
        "penalty": [1.0, 1.2, 1.4, 2.0],
    }
    fixed = {"model": model, "engine_args": ARGS, "gpus": 0, "use_process": False, "details": True, "max_tokens": 4}
    rows = daft.from_pydict(columns).select("id", prompt(col("q"), **(fixed | options)).alias("a")).to_pylist()
    assert [row["id"] for row in rows] == columns["id"]
    assert all(row["a"]["error"] is None for row in rows), rows
    return [(row["a"]["value"], row["a"]["finish_reason"], row["a"]["completion_tokens"]) for row in rows]


@pytest.fixture(scope="module")
def found(smollm2: str) -> Iterator[dict[str, dict[str, list[Any]]]]:
    """What both runners answer, by runner and case."""
    before = os.environ.get(RUNNER)
    answers: dict[str, dict[str, list[Any]]] = {}
    for runner, value in (("V2", "1"), ("V1", "0")):
        os.environ[RUNNER] = value
        close_engines()
        engine = shared_engine(EngineConfig(smollm2, dict(ARGS), gpus=0), check_chat_template=True)
        assert engine._state._core.llm.vllm_config.use_v2_model_runner is (runner == "V2")
        answers[runner] = {name: answered(smollm2, **options) for name, options in (SAME | RANDOM).items()}
    yield answers
    close_engines()
    if before is not None:
        os.environ[RUNNER] = before


@pytest.mark.parametrize("name", SAME)
def test_the_same_answers(found: dict[str, dict[str, list[Any]]], name: str) -> None:
    assert found["V2"][name] == found["V1"][name]
    if name not in ("greedy", "min_p"):
        assert found["V2"][name] != found["V2"]["greedy"], "the option has an effect"


def test_seeds(found: dict[str, dict[str, list[Any]]]) -> None:
    """Each runner draws other random numbers, but the same ones again for the same seed."""
    for answers in found.values():
        assert answers["seed"] == answers["the same seed"] != answers["another seed"]
