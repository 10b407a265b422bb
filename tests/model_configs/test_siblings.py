"""The same models with quantized weights: names, kinds, sources, and on which cards advice names them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest

from daft_vllm.model_configs import known_models
from daft_vllm.model_configs.advice import advice, faster
from daft_vllm.model_configs.cards import card_of, cards
from daft_vllm.model_configs.memory import plan_memory, weights_of
from daft_vllm.model_configs.quantization import quantization_of
from daft_vllm.model_configs.siblings import Kind, as_quantized, quantized_siblings, usable_siblings

_FILE = Path(__file__).parents[2] / "model_configs" / "overlays" / "quantized.toml"
SECTIONS: dict[str, dict[str, str]] = tomllib.loads(_FILE.read_text(encoding="utf-8"))
KINDS = list(get_args(Kind))
MARKS = {
    "fp8": r"fp8",
    "int8": r"w8a8|int8",
    "int4": r"w4a16|awq|int4|4bit",
}
"""What a name says about the kind of its weights."""


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section(name: str) -> None:
    section = dict(SECTIONS[name])
    config = known_models()[name]
    assert section.pop("source").strip()
    assert config.quantization is None, "its own weights are quantized"
    assert config.task == "generate"
    assert list(section) == [kind for kind in KINDS if kind in section] != []
    for kind, hub_name in section.items():
        assert re.fullmatch(r"[\w-]+/[\w.-]+", hub_name)
        assert hub_name.lower() != config.hub_name.lower()
        assert re.search(MARKS[kind], hub_name, re.IGNORECASE)
        assert quantization_of(as_quantized(config, kind)) is not None
    assert quantized_siblings(config) == section


def test_each_name_belongs_to_one_model() -> None:
    names = [name for section in SECTIONS.values() for kind, name in section.items() if kind != "source"]
    assert len(set(names)) == len(names) > 150


def said(model: str, card: str, gpus: int = 1, **args: Any) -> str:
    config = known_models()[model]
    weights = weights_of(config, args)
    plan = plan_memory(config.architecture, weights, card_of(card), gpus=gpus, engine_args=args)
    if plan.fits:
        return "\n".join(faster(config, plan, args, shape=(512, 0, 128)))
    return "\n".join(advice(config, plan, weights, args))


def test_what_would_fit_is_named() -> None:
    assert 'model="Qwen/Qwen3-32B-AWQ"' in said("qwen3-32b", "A100-40")
    assert 'model="Qwen/Qwen3-32B-AWQ"' in said("qwen3-32b", "L4", gpus=2)
    assert "Qwen3-32B" not in said("qwen3-32b", "L4")  # 18 GiB of weights in 20.2, and the rest takes 3
    # The 8-bit weights leave room for 3,900 tokens.
    assert 'model="RedHatAI/Llama-3.3-70B-Instruct-quantized.w4a16"' in said("llama-3.3-70b", "A100-80")
    assert 'model="RedHatAI/Llama-3.3-70B-Instruct-quantized.w8a8"' in said(
        "llama-3.3-70b", "A100-80", max_model_len=2048
    )


def test_what_would_be_faster_is_named() -> None:
    assert 'model="Qwen/Qwen3-8B-FP8"' in said("qwen3-8b", "L4")
    assert 'model="RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8"' in said("llama-3.1-8b", "A100-40")


@pytest.mark.parametrize("card", cards())
def test_no_card_gets_weights_that_it_cannot_multiply(card: str) -> None:
    """FP8 begins with compute capability 8.9; vLLM's kernels for 8-bit integers end before 10.0."""
    capability = cards()[card].capability or ()
    for name, section in SECTIONS.items():
        usable = usable_siblings(known_models()[name], cards()[card], 1)
        assert ("fp8" in usable) == ("fp8" in section and capability >= (8, 9))
        assert ("int8" in usable) == ("int8" in section and (7, 5) <= capability < (10,))
        assert ("int4" in usable) == ("int4" in section)


@pytest.mark.parametrize("card", [name for name, card in cards().items() if (card.capability or ()) < (8, 9)])
def test_advice_names_no_fp8_where_there_is_none(card: str) -> None:
    for model in ("qwen3-8b", "qwen3-32b", "llama-3.3-70b", "qwen3-30b-a3b-2507", "phi-4"):
        for gpus in (1, 2):
            assert "fp8" not in said(model, card, gpus=gpus).lower()


def test_weights_that_cannot_be_split_are_not_named() -> None:
    """Each GPU's columns of the MLP have to be whole groups or blocks of 128."""
    assert "fp8" in usable_siblings(known_models()["qwen3-32b"], card_of("H100"), 8)  # 25,600 / 8 = 25 x 128
    assert "int4" in usable_siblings(known_models()["qwen2.5-7b"], card_of("H100"), 4)  # 18,944 / 4 = 37 x 128
    assert "int4" not in usable_siblings(
        known_models()["qwen2.5-vl-72b"], card_of("H100"), 8
    )  # 29,568 / 8 = 28.9 x 128
