"""LoRA adapters by row, on a shrunken model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import daft
import pytest
from daft import col

from daft_vllm import close_engines, prompt
from daft_vllm.engine.setup.adapters import adapter_args
from daft_vllm.errors import ModelError, OptionError
from tests.conftest import TINY_ARGS

pytestmark = pytest.mark.other_engine


def write_adapter(folder: Path, seed: int, *, rank: int = 4, width: int = 64, projection: str = "v_proj") -> str:
    """Write an adapter of random weights for the shrunken model, in PEFT's layout."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    draw = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(2):
        name = f"base_model.model.model.layers.{layer}.self_attn.{projection}"
        tensors[f"{name}.lora_A.weight"] = torch.randn(rank, width, generator=draw)
        tensors[f"{name}.lora_B.weight"] = torch.randn(width, rank, generator=draw)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 10_000, "target_modules": [projection], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    folder = tmp_path_factory.mktemp("adapters")
    yield {f"a{i}": write_adapter(folder / f"a{i}", i, rank=4 if i else 12) for i in range(6)}
    close_engines()


def answered(tiny: str, df: daft.DataFrame, adapters: dict[str, str], **options: Any) -> list[dict[str, Any]]:
    fixed = {"engine_args": TINY_ARGS, "gpus": 0, "use_process": False, "details": True, "max_tokens": 8}
    asked = prompt(col("q"), model=tiny, adapters=adapters, ignore_eos=True, **(fixed | options))
    rows = df.select("id", asked.alias("a")).to_pylist()
    assert [row["id"] for row in rows] == list(range(len(rows)))
    return [row["a"] for row in rows]


def test_an_adapter_for_each_row(tiny: str, adapters: dict[str, str]) -> None:
    """Six adapters, more than run at once, and the bare model, mixed: each row as if it had its adapter to itself."""
    names = [None, *adapters, "unknown"]
    rows = 64
    chosen = [names[i % len(names)] for i in range(rows)]
    questions = ["The same beginning " * 30 + f"and the end {i // len(names)}" for i in range(rows)]
    df = daft.from_pydict({"id": list(range(rows)), "q": questions, "n": chosen})
    mixed = answered(tiny, df, adapters, adapter=col("n"))
    assert [row["error"] is None for row in mixed] == [name != "unknown" for name in chosen]
    assert "invalid_request: there is no adapter 'unknown'" in mixed[-1]["error"]
    texts: dict[str | None, list[str]] = {}
    for name in (None, "a0", "a1", "a5"):
        alone = answered(tiny, df, adapters, adapter=name, dedupe=False)
        texts[name] = [row["text"] for row in alone]
        assert all(row["error"] is None for row in alone)
        assert [row["text"] for row, one in zip(mixed, chosen, strict=True) if one == name] == [
            row["text"] for row, one in zip(alone, chosen, strict=True) if one == name
        ]
    assert len({texts[name][0] for name in texts}) == 4
    # The first row of an adapter computes the whole prompt: nothing is taken from another adapter's cache.
    first = {name: [] for name in names}  # type: ignore[var-annotated]
    for row, name in zip(mixed, chosen, strict=True):
        first[name].append(row["cached_tokens"])
    for name in (None, *adapters):
        assert min(first[name]) == 0
        assert max(first[name]) > 0


def test_adapters_that_cannot_be_used(tiny: str, adapters: dict[str, str], tmp_path: Path) -> None:
    def refused(error: type[Exception], says: str, **options: Any) -> None:
        with pytest.raises(error, match=says):
            prompt(col("q"), model=tiny, gpus=0, **options)

    refused(OptionError, "which is empty", adapter="x")
    refused(OptionError, "no adapter 'a'. Did you mean 'a", adapters=adapters, adapter="a")
    refused(ModelError, "there is no folder", adapters={"x": str(tmp_path / "missing")})
    (tmp_path / "empty").mkdir()
    refused(ModelError, "no readable adapter_config.json", adapters={"x": str(tmp_path / "empty")})
    (tmp_path / "empty" / "adapter_config.json").write_text('{"r": 8}')
    refused(ModelError, "has no weights", adapters={"x": str(tmp_path / "empty")})
    (tmp_path / "empty" / "adapter_config.json").write_text('{"peft_type": "IA3"}')
    refused(ModelError, "no LoRA adapter", adapters={"x": str(tmp_path / "empty")})
    given = adapter_args(adapters, {"max_loras": 8})
    assert given == {"enable_lora": True, "max_lora_rank": 16, "max_cpu_loras": 8}
    assert adapter_args(adapters, {"max_cpu_loras": 1})["max_loras"] == 1
    assert adapter_args(adapters, {})["max_loras"] == 4
    df = daft.from_pydict({"id": [0], "q": ["hello"]})
    with pytest.raises(OptionError, match="less than the rank of an adapter, 12"):
        answered(tiny, df, adapters, engine_args={**TINY_ARGS, "max_lora_rank": 8})
    wide = write_adapter(tmp_path / "wide", 1, width=128)
    with pytest.raises(ModelError, match="can't load the adapter 'wide'"):
        answered(tiny, df, {"wide": wide})
