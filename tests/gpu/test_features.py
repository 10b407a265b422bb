"""Options by row, formats, thinking, adapters and pictures, with a few rows of small models.

On a GPU the numbers of a row depend a little on the other rows of its step. So no answer is compared with a fixed text,
and where two are compared, they come from the same steps, or most of them have to be equal.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import daft
import numpy as np
import pytest
from daft import col, lit
from PIL import Image
from pydantic import BaseModel, Field

from benchmarks import shrunken
from daft_vllm import FileAccess, image, prompt
from tests.gpu import ARGS, DUMMY_ARGS, GPUS, MARKS
from tests.udf.test_adapters import write_adapter
from tests.udf.test_thinking import TEMPLATE, Mood

pytestmark = MARKS
QUESTIONS = ["Say hi", "What is 2+2?", "Name a colour", "Is water wet?"]
HELLO = 9906
"""One of SmolLM2's tokens."""


class Word(BaseModel):
    """llguidance takes the pattern."""

    word: str = Field(pattern="^[ab]{1,3}$", max_length=2)


class Number(BaseModel):
    """xgrammar takes it."""

    n: Literal[1, 2]


def answered(model: str, questions: Any = None, **options: Any) -> list[dict[str, Any]]:
    asked = questions or {"q": QUESTIONS}
    rows = len(next(iter(asked.values())))
    fixed = {"model": model, "engine_args": ARGS, "gpus": GPUS, "use_process": False, "details": True, "max_tokens": 8}
    df = daft.from_pydict({"id": list(range(rows)), **asked})
    messages = options.pop("messages", col("q"))
    found = df.select("id", prompt(messages, **(fixed | options)).alias("a")).to_pylist()
    assert [row["id"] for row in found] == list(range(rows))
    assert all(row["a"]["error"] is None for row in found), found
    return [row["a"] for row in found]


CHECKS: dict[str, tuple[dict[str, Any], Callable[[list[dict[str, Any]]], bool]]] = {
    "repetition_penalty": ({"repetition_penalty": 2.0, "max_tokens": 32}, lambda rows: True),
    "presence_penalty": ({"presence_penalty": 2.0, "max_tokens": 32}, lambda rows: True),
    "frequency_penalty": ({"frequency_penalty": 2.0, "max_tokens": 32}, lambda rows: True),
    "logit_bias": ({"logit_bias": {HELLO: 100.0}}, lambda rows: len({row["text"] for row in rows}) == 1),
    "allowed_token_ids": ({"allowed_token_ids": [HELLO]}, lambda rows: len({row["text"] for row in rows}) == 1),
    "bad_words": ({"bad_words": ["Hello", "The", "I"]}, lambda rows: not any("Hello" in row["text"] for row in rows)),
    "min_tokens": (
        {"min_tokens": 4, "allowed_token_ids": [2, 500, 501]},
        lambda rows: all(row["completion_tokens"] >= 4 for row in rows),
    ),
    "stop": ({"stop": ["e"], "max_tokens": 32}, lambda rows: not any("e" in row["text"] for row in rows)),
}


@pytest.mark.parametrize("name", CHECKS)
def test_sampling_options(smollm2: str, name: str) -> None:
    options, holds = CHECKS[name]
    plain = answered(smollm2, temperature=0.0, max_tokens=options.get("max_tokens", 8))
    rows = answered(smollm2, temperature=0.0, **options)
    assert holds(rows), rows
    assert [row["text"] for row in rows] != [row["text"] for row in plain], "the option has an effect"


def test_seeds(smollm2: str) -> None:
    """One row at a time, so that each is computed in the same way."""
    one = {"q": ["Name any three words"]}
    texts = [
        answered(smollm2, one, temperature=1.0, seed=seed, max_tokens=16, dedupe=False)[0]["text"]
        for seed in (7, 7, 7, 8)  # the first finds nothing in the prefix cache
    ]
    assert texts[1] == texts[2] != texts[3]


@pytest.mark.parametrize(("backend", "form"), [("xgrammar", Number), ("guidance", Word)])
def test_formats(smollm2: str, backend: str, form: type[BaseModel]) -> None:
    for row in answered(smollm2, return_format=form, backend=backend, max_tokens=32, temperature=1.0):
        form.model_validate(row["value"])


def test_options_and_choices_by_row(smollm2: str) -> None:
    asked = {"q": QUESTIONS, "heat": [0.0, 1.0, 0.5, 2.0], "most": [1, 2, 4, 8]}
    rows = answered(smollm2, asked, temperature=col("heat"), max_tokens=col("most"), ignore_eos=True)
    assert [row["completion_tokens"] for row in rows] == [1, 2, 4, 8]
    assert {row["value"] for row in answered(smollm2, return_format=["blue", "yes"])} <= {"blue", "yes"}


@pytest.mark.parametrize("difference", [-64, 64])
def test_masks_are_as_wide_as_the_logits(tiny: str, tmp_path: Path, difference: int) -> None:
    """The tokenizer has more tokens than the model has logits, as Gemma-3 1B's has; or fewer, as Qwen3's."""
    folder = tmp_path / "other"
    shutil.copytree(tiny, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": config["vocab_size"] + difference}))
    schema = {"type": "object", "properties": {"word": {"type": "string", "pattern": "^[ab]{1,3}$"}}}
    schema |= {"required": ["word"], "additionalProperties": False}
    rows = answered(str(folder), return_format=schema, backend="xgrammar", engine_args=DUMMY_ARGS, max_tokens=32)
    assert all(re.fullmatch(r'\{\s*"word":\s*"[ab]{1,3}"\s*\}', row["text"]) for row in rows), rows


def test_a_thinking_budget_for_each_row(smollm2: str, tmp_path: Path) -> None:
    model = shrunken.qwen3(smollm2, tmp_path / "qwen3")
    asked = {"q": ["Waves of ten metres.", "No wind.", "A breeze."], "n": [0, 5, 20]}
    options = {"chat_template": TEMPLATE, "thinking": True, "thinking_token_budget": col("n"), "max_tokens": 60}
    args = {**DUMMY_ARGS, "reasoning_parser": "qwen3"}
    rows = answered(model, asked, return_format=Mood, engine_args=args, **options)
    assert all(row["value"]["mood"] in ("calm", "stormy") for row in rows)
    assert rows[0]["reasoning"] == ""
    assert rows[1]["completion_tokens"] < rows[2]["completion_tokens"]


def test_an_adapter_for_each_row(tiny: str, tmp_path: Path) -> None:
    adapters = {f"a{i}": write_adapter(tmp_path / f"a{i}", i) for i in range(3)}
    names = [None, *adapters] * 8
    questions = [f"The question {i // 4}" for i in range(len(names))]
    fixed = {"adapters": adapters, "engine_args": DUMMY_ARGS, "max_tokens": 2, "ignore_eos": True, "temperature": 0.0}
    mixed = answered(tiny, {"q": questions, "n": names}, adapter=col("n"), **fixed)
    alone = {name: answered(tiny, {"q": questions}, adapter=name, dedupe=False, **fixed) for name in (None, *adapters)}
    same = [mixed[i]["text"] == alone[name][i]["text"] for i, name in enumerate(names)]
    assert sum(same) >= 0.75 * len(same)
    assert len({tuple(row["text"] for row in rows) for rows in alone.values()}) == len(alone)


def test_pictures(smollm2: str, tmp_path: Path) -> None:
    model = shrunken.qwen25_vl(smollm2, tmp_path / "qwen25_vl")
    draw = np.random.default_rng(3)
    paths = []
    for i in range(12):
        height, width = (int(side) for side in draw.integers(56, 224, size=2))
        paths.append(str(tmp_path / f"{i}.png"))
        Image.fromarray(draw.integers(0, 255, (height, width, 3), dtype=np.uint8)).save(paths[-1])
    options = {"engine_args": {**DUMMY_ARGS, "max_model_len": 1024}, "files": FileAccess(folders=[tmp_path])}
    rows = answered(model, {"p": paths}, messages=[lit("Describe"), image(col("p"))], temperature=0.0, **options)
    assert len({row["prompt_tokens"] for row in rows}) > 1, "a picture takes tokens by its size"
