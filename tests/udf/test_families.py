"""Every family that takes media, shrunken, through the whole of vLLM and the public API."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import daft
import numpy as np
import pytest
from daft import col, lit
from PIL import Image

from benchmarks import shrunken
from daft_vllm import audio, image, prompt
from daft_vllm.errors import ModelError
from tests.conftest import TINY_ARGS
from tests.helpers import code_of, sound

pytestmark = pytest.mark.other_engine
FIXED: dict[str, Any] = {
    "engine_args": {**TINY_ARGS, "max_model_len": 2048},
    "gpus": 0,
    "use_process": False,
    "details": True,
    "max_tokens": 4,
    "ignore_eos": True,
}


def answered(df: daft.DataFrame, messages: Any, model: str) -> list[dict[str, Any]]:
    rows = df.select("id", prompt(messages, model=model, **FIXED).alias("a")).sort("id").to_pylist()
    assert [row["id"] for row in rows] == df.to_pydict()["id"]
    return [row["a"] for row in rows]


def picture(seed: int, height: int, width: int) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 255, (height // 8 + 1, width // 8 + 1, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize((width, height)).save(file, format="PNG")
    return file.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("make", [shrunken.qwen25_vl, shrunken.qwen3_vl, shrunken.smolvlm])
def test_images(make: Callable[[str, Path], str], smollm2: str, tmp_path: Path) -> None:
    """Sizes that aren't alike, two in a row, broken and missing ones; another image is another prompt."""
    model = make(smollm2, tmp_path / "model")
    first = [picture(i, 64 + 40 * i, 200 - 10 * i) for i in range(10)]
    second: list[bytes | None] = [picture(90 + i, 100, 100) for i in range(10)]
    first[3], second[5] = first[3][:50], None
    df = daft.from_pydict(
        {"id": list(range(10)), "one": first, "two": second, "q": [f"What is {i}?" for i in range(10)]}
    )
    rows = answered(df, [image(col("one")), lit("and"), col("two"), col("q")], model)
    codes = [code_of(row) for row in rows]
    assert codes == [None, None, None, "invalid_media", None, "null_prompt", None, None, None, None]
    assert all(row["completion_tokens"] == 4 for row in rows if code_of(row) is None)
    other_order = answered(df, [col("two"), lit("and"), image(col("one")), col("q")], model)
    assert [row["prompt_tokens"] for row in other_order] == [row["prompt_tokens"] for row in rows]
    with pytest.raises(ModelError, match="takes no audios"):
        answered(df, [audio(col("one"))], model)


def test_sounds(smollm2: str, tmp_path: Path) -> None:
    model = shrunken.qwen2_audio(smollm2, tmp_path / "model")
    sounds: list[bytes | None] = [sound(0.3 + 0.2 * i, 200 + 50 * i) for i in range(6)]
    sounds[2], sounds[4] = b"RIFF and no more", None
    df = daft.from_pydict({"id": list(range(6)), "sound": sounds})
    rows = answered(df, [audio(col("sound")), lit("Who speaks?")], model)
    codes = [code_of(row) for row in rows]
    assert codes == [None, None, "invalid_media", None, "null_prompt", None]
    longer = [row["prompt_tokens"] for row in rows if code_of(row) is None]
    assert longer == sorted(set(longer))  # the longer the sound, the more tokens
    bytes_alone = answered(df, [col("sound"), lit("Who speaks?")], model)
    assert [row["text"] for row in bytes_alone] == [row["text"] for row in rows]
    with pytest.raises(ModelError, match="takes no images"):
        answered(df, [image(col("sound"))], model)
