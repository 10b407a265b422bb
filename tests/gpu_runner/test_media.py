"""Pictures and sounds: the same answers from both of vLLM's runners, on shrunken models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import daft
import pytest
from daft import col, lit

from benchmarks import shrunken
from daft_vllm import audio, image, prompt
from tests.gpu_runner import MARKS
from tests.gpu_runner.runners import ARGS, FIXED, of_both, told
from tests.helpers import code_of
from tests.udf.test_families import picture, sound

pytestmark = MARKS
PICTURES = [picture(1, 64, 200), picture(2, 150, 90), picture(1, 64, 200), picture(3, 100, 100)[:50], None]
SOUNDS = [sound(0.3, 200), sound(0.6, 300), sound(0.3, 200), b"RIFF and no more", None]
CODES = [None, None, None, "invalid_media", "null_prompt"]


def with_weights(folder: str) -> str:
    """Write random weights into a model's folder. With those of ``load_format="dummy"`` a medium changes no answer."""
    import torch
    import transformers
    from safetensors.torch import load_file, save_file

    config = transformers.AutoConfig.from_pretrained(folder)
    torch.manual_seed(0)
    getattr(transformers, config.architectures[0])(config).save_pretrained(folder)
    file = Path(folder) / "model.safetensors"
    # As in the files of real Qwen2-Audio models, which transformers 5 reads, but writes in another way.
    weights = {name.replace("model.model.", "model."): tensor for name, tensor in load_file(file).items()}
    save_file(weights, file, {"format": "pt"})
    return folder


def answers_of_both(model: str, asked: dict[str, list[Any]], **args: Any) -> dict[str, dict[str, list[dict[str, Any]]]]:
    df = daft.from_pydict({"id": list(range(5)), "picture": PICTURES, "sound": SOUNDS})
    df = df.with_column("q", lit("What is it?"))
    args = {**ARGS, "max_model_len": 1024, "kv_cache_memory_bytes": 64 << 20, **args}

    def ask() -> dict[str, list[dict[str, Any]]]:
        answers = {}
        for name, messages in asked.items():
            answer = prompt(messages, model=model, engine_args=args, **FIXED, max_tokens=4, ignore_eos=True)
            rows = df.select("id", answer.alias("a")).to_pylist()
            assert [row["id"] for row in rows] == list(range(5))
            # The end of an error may have the address of an object.
            answers[name] = [{**row, "error": row["error"] and row["error"][:20]} for row in told(rows)]
        return answers

    return of_both(ask)


@pytest.mark.parametrize(
    ("make", "part"),
    [
        pytest.param(shrunken.qwen3_vl, image(col("picture")), id="qwen3_vl"),
        pytest.param(shrunken.qwen2_audio, audio(col("sound")), id="qwen2_audio"),
    ],
)
def test_the_same_answers(make: Callable[[str, Path], str], part: Any, smollm2: str, tmp_path: Path) -> None:
    asked = {"one": [part, col("q")], "two": [part, lit("and"), part, col("q")]}
    found = answers_of_both(with_weights(make(smollm2, tmp_path / "model")), asked)
    for name in asked:
        rows = found["V2"][name]
        assert rows == found["V1"][name], name
        assert [code_of(row) for row in rows] == CODES
        assert rows[0]["text"] == rows[2]["text"] != rows[1]["text"], "the medium has an effect"
    assert found["V2"]["one"][1]["text"] != found["V2"]["two"][1]["text"]


def test_linear_attention(smollm2: str, tmp_path: Path) -> None:
    """V2 keeps the states of these layers in other code than the rest. On a CPU they need bfloat16."""
    model = shrunken.qwen3_5(smollm2, tmp_path / "model")
    found = answers_of_both(with_weights(model), {"text": [col("q"), col("id")]}, dtype="bfloat16")
    assert found["V2"] == found["V1"]
    assert [code_of(row) for row in found["V2"]["text"]] == [None] * 5
