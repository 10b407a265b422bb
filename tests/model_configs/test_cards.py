"""Cards as people type them, and as the driver names them."""

from __future__ import annotations

from typing import Any

import pytest

from daft_vllm.errors import OptionError
from daft_vllm.model_configs import known_models
from daft_vllm.model_configs.cards import GIB, card_named, card_of, cards, planned_card, with_memory
from daft_vllm.model_configs.memory import plan_memory, weights_of
from daft_vllm.model_configs.resolution import resolve
from daft_vllm.model_configs.throughput import estimate_throughput

TYPED = {
    "a100": "A100-40",
    "A100-80G": "A100-80",
    "A100 80GB": "A100-80",
    "a100 80 gb": "A100-80",
    "a10080gb": "A100-80",
    "A100_40GB": "A100-40",
    "NVIDIA A100-SXM4-80GB": "A100-80",
    "NVIDIA A100-PCIE-40GB": "A100-40",
    "NVIDIA A100 80GB PCIe": "A100-80-PCIE",
    "H100-80GB": "H100",
    "h100 sxm": "H100",
    "H100 NVL": "H100-NVL",
    "h100 94gb": "H100-NVL",
    "H100 PCIe": "H100-PCIE",
    "L40S": "L40S",
    "NVIDIA L4": "L4",
    "l4-24gb": "L4",
    "RTX 4090": "RTX-4090",
    "rtx4090": "RTX-4090",
    "NVIDIA GeForce RTX 4090": "RTX-4090",
    "4090": "RTX-4090",
    "T4": "T4",
    "Tesla T4": "T4",
    "A6000": "RTX-A6000",
    "RTX 6000 Ada": "RTX-6000-ADA",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "RTX-PRO-6000",
    "B200": "B200",
    "H20": "H20",
    "h20-141gb": "H20-141",
    "MI300X": "MI300X",
    "AMD Instinct MI300X OAM": "MI300X",
}


@pytest.mark.parametrize("typed", TYPED)
def test_as_people_type_them(typed: str) -> None:
    assert card_of(typed).name == TYPED[typed]


def test_every_card_by_its_own_names() -> None:
    for card in cards().values():
        assert card_of(card.name) == card
        assert card_named(card.full_name, card.memory_bytes) == card
        assert 0.85 * card.memory_gb * 1e9 < card.memory_bytes <= card.memory_gb * GIB
        assert card.source
        assert card.like is None or card.like in cards()
        for name in card.names:
            assert name.isalnum()
            assert name == name.lower()
            assert TYPED.get(name, card_of(name).name) == card_of(name).name


def test_a_name_that_several_cards_have() -> None:
    assert "40 or 80 GB. This is for 40 GB; for more write A100-80" in card_of("a100").note
    assert not card_of("A100-80G").note
    assert not card_of("H100").note  # the name of a card


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("L44", r"no card 'L44'\. Did you mean 'L4'.*--gpu-memory 24"),
        ("a100-60gb", r"Did you mean 'A100-40' or 'A100-80'"),
        ("RTX 4090 Laptop", "Did you mean 'RTX-4090'"),
        ("GTX 1080", "--gpu-memory 24"),
        ("8xH100", "write H100, and gpus=8"),
        ("H100 x 8", "write H100, and gpus=8"),
        ("", "no card ''"),
    ],
)
def test_cards_that_are_not_known(typed: str, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        card_of(typed)


def test_memory_of_any_other_card() -> None:
    card = with_memory(24)
    config = known_models()["qwen3-8b"]
    plan = plan_memory(config.architecture, weights_of(config), card)
    assert plan.fits
    assert plan.available < 24e9
    assert (
        estimate_throughput(config, plan, prompt_tokens=512, output_tokens=128) is None
    )  # nothing is known of its speed
    part = card_of("A100-80", 20)
    assert (part.memory_bytes, part.bandwidth) == (20_000_000_000, card_of("A100-80").bandwidth)
    for wrong in (0, -1, float("nan"), 1e6):
        with pytest.raises(OptionError, match="memory in GB"):
            with_memory(wrong)


def test_settings_of_a_card_hold_for_its_variants() -> None:
    config = known_models()["gpt-oss-20b"]
    for name in ("H100 NVL", "H100 PCIe", "GH200"):
        setting = resolve(config, card=card_of(name))["max_cudagraph_capture_size"]
        assert setting.origin == "model gpt-oss-20b on H100"
    assert "max_cudagraph_capture_size" in resolve(config, card=card_of("H200 NVL"))
    assert "max_cudagraph_capture_size" not in resolve(config, card=card_of("L40S"))


def test_the_driver_says_how_much_memory_there_is() -> None:
    found = card_named("NVIDIA A100-SXM4-80GB", 10 * GIB)
    assert found is not None
    assert found.memory_bytes == 10 * GIB
    assert card_named("NVIDIA TITAN of tomorrow", 10 * GIB) is None


@pytest.mark.parametrize("name", ["V100", "Tesla P100-PCIE-16GB", "RTX 4070", "MI250X", "GTX 1080 Ti", "B100"])
def test_another_card_is_not_suggested(name: str) -> None:
    with pytest.raises(OptionError) as error:
        planned_card(name, None)
    assert "Did you mean" not in str(error.value)
    with pytest.raises(OptionError, match="leave gpu out"):
        planned_card(name, 16)


@pytest.mark.parametrize(
    ("given", "gigabytes"),
    [(80, 80), (79.5, 79.5), ("80", 80), ("80GB", 80), ("80 gb", 80), ("80g", 80), ("80GiB", 85.9), ("81559MiB", 85.5)],
)
def test_memory_as_people_write_it(given: Any, gigabytes: float) -> None:
    card = planned_card(None, given)
    assert card is not None
    assert card.memory_bytes / 1e9 == pytest.approx(gigabytes, abs=0.05)


@pytest.mark.parametrize("given", ["x", "", "-1", -1, 0, True, float("nan"), float("inf"), [80], "80 TB"])
def test_memory_that_is_none(given: Any) -> None:
    with pytest.raises(OptionError, match="memory in GB"):
        planned_card("L4", given)
