"""Fixtures: one real engine for all tests, and a tiny model with random weights for tests that need no real answers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("DAFT_ANALYTICS_ENABLED", "0")
os.environ.setdefault("DAFT_PROGRESS_BAR", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

# CPUs with AVX-512 BF16 or AMX use bfloat16 by default. If two tokens are almost equally likely in bfloat16, the other
# rows of the batch decide which one is taken. So the same question may get different answers on different machines.
ENGINE_ARGS = {"max_model_len": 1024, "kv_cache_memory_bytes": 1 << 30, "dtype": "float32"}
TINY_ARGS = {"load_format": "dummy", "max_model_len": 512, "kv_cache_memory_bytes": 64 << 20}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run those tests last that close the session's idle engine to open an engine of their own."""
    items.sort(key=lambda item: item.get_closest_marker("other_engine") is not None)


@pytest.fixture(scope="session")
def smollm2() -> str:
    """The folder of SmolLM2-135M-Instruct, a real model."""
    from daft_vllm.model_configs import resolve_model

    return resolve_model("smollm2-135m")


@pytest.fixture(scope="session")
def engine(smollm2: str) -> Iterator[object]:
    """The session's engine. ``prompt(..., use_process=False)`` with the same arguments uses it too."""
    from daft_vllm import EngineConfig
    from daft_vllm.udf.worker.engines import close_engines, shared_engine

    yield shared_engine(EngineConfig(smollm2, dict(ENGINE_ARGS), gpus=0), check_chat_template=True)
    close_engines()


@pytest.fixture(scope="session")
def tiny(smollm2: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Llama of two layers of width 64 with SmolLM2's tokenizer; weights are random (``load_format="dummy"``)."""
    from transformers import LlamaConfig

    folder = tmp_path_factory.mktemp("tiny")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(Path(smollm2) / name, folder / name)
    config = LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=49152,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        dtype="float32",
    )
    config.save_pretrained(folder)
    return str(folder)
