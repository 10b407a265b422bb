"""Formats where a tokenizer has more tokens than the model has logits: Gemma-3 1B, fine-tunes with new tokens."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator

import daft
import pytest
from daft import col

from daft_vllm import close_engines, prompt
from tests.gpu_runner import MARKS

pytestmark = MARKS


@pytest.fixture(scope="module")
def fewer(tiny: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A model that has 64 logits fewer than its tokenizer has tokens."""
    folder = tmp_path_factory.mktemp("models") / "fewer"
    shutil.copytree(tiny, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": config["vocab_size"] - 64}))
    yield str(folder)
    close_engines()


@pytest.mark.parametrize("backend", ["xgrammar", "guidance"])
def test_masks_are_as_wide_as_the_logits(fewer: str, backend: str) -> None:
    schema = {"type": "object", "properties": {"word": {"type": "string", "pattern": "^[ab]{1,3}$"}}}
    schema |= {"required": ["word"], "additionalProperties": False}
    args = {"load_format": "dummy", "max_model_len": 256, "max_num_seqs": 4, "kv_cache_memory_bytes": 64 << 20}
    df = daft.from_pydict({"id": [0, 1, 2], "q": ["Say a", "Say b", "Say ab"]})
    answer = prompt(
        col("q"),
        schema,
        backend=backend,
        model=fewer,
        engine_args=args,
        gpus=0,
        use_process=False,
        details=True,
        max_tokens=32,
    )
    rows = df.select("id", answer.alias("a")).to_pylist()
    assert [row["id"] for row in rows] == [0, 1, 2]
    assert all(row["a"]["error"] is None for row in rows), rows
    assert all(re.fullmatch(r'\{\s*"word":\s*"[ab]{1,3}"\s*\}', row["a"]["text"]) for row in rows), rows
