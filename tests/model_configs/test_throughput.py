"""Estimates of rows per second: what has an effect, in which direction, and where there is no estimate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from daft_vllm.model_configs import ModelConfig, known_models
from daft_vllm.model_configs.cards import card_of, cards
from daft_vllm.model_configs.memory import plan_memory, vllm_defaults, weights_of
from daft_vllm.model_configs.throughput import OFF_BY, Throughput, estimate_throughput

CHAT = {"prompt_tokens": 512, "output_tokens": 128}


def estimate(
    model: str | ModelConfig, card: str, shape: dict[str, int] = CHAT, *, gpus: int = 1, **args: Any
) -> Throughput | None:
    config = known_models()[model] if isinstance(model, str) else model
    weights = weights_of(config, args)
    plan = plan_memory(config.architecture, weights, card_of(card), gpus=gpus, engine_args=args)
    return estimate_throughput(config, plan, args, **shape)


def rows(model: str | ModelConfig, card: str, shape: dict[str, int] = CHAT, *, gpus: int = 1, **args: Any) -> float:
    found = estimate(model, card, shape, gpus=gpus, **args)
    assert found is not None
    assert 0 < found.low < found.rows < found.high
    return found.rows


def test_bounded_by_the_card() -> None:
    config = known_models()["qwen3-8b"]
    rates = []
    for card in ("L4", "A100-80", "H100"):
        rate = estimate("qwen3-8b", card)
        assert rate is not None
        assert rate.prompt_tokens < card_of(card).flops / (2 * config.parameters)
        assert rate.sequences <= vllm_defaults(card_of(card))["max_num_seqs"]
        rates.append(rate.rows)
    assert rates == sorted(rates)
    assert rate is not None
    assert rate.hours(3_600_000, engines=2) == pytest.approx(500 / rate.rows)


@pytest.mark.parametrize("card", cards())
def test_each_card_has_an_estimate_for_a_model_that_fits(card: str) -> None:
    assert rows("qwen3-0.6b", card) > 1


@pytest.mark.parametrize("model", known_models())
def test_each_model_has_an_estimate_where_it_fits(model: str) -> None:
    config = known_models()[model]
    if config.task == "generate":
        assert estimate(model, "B200", gpus=8) is not None


def test_what_makes_rows_cheaper() -> None:
    base = rows("qwen3-8b", "H100")
    assert rows("qwen3-8b", "H100", {**CHAT, "cached_tokens": 480}) > 1.3 * base
    assert rows("qwen3-8b", "H100", {**CHAT, "output_tokens": 8}) > 1.7 * base
    assert rows("qwen3-8b", "H100", quantization="fp8") > 1.2 * base
    assert rows("qwen3-8b", "H100", gpus=4) > 1.5 * base
    assert rows("qwen3-8b", "H100", max_num_seqs=16) < 0.7 * base
    assert rows("qwen3-30b-a3b-2507", "H100") > 1.3 * rows("qwen3-32b", "H100")


def test_a_cache_in_8_bits_pays_where_the_cache_is_full() -> None:
    long = {"prompt_tokens": 4000, "output_tokens": 500}
    assert rows("qwen3-8b", "L4", long, kv_cache_dtype="fp8") > 1.2 * rows("qwen3-8b", "L4", long)


def test_weights_in_8_bits_are_multiplied_as_such_only_by_cards_that_can() -> None:
    prompts = {"prompt_tokens": 2000, "output_tokens": 1}
    assert rows("qwen3-8b", "L4", prompts, quantization="fp8") > 1.4 * rows("qwen3-8b", "L4", prompts)
    assert rows("qwen3-8b", "A100-80", prompts, quantization="fp8") < rows("qwen3-8b", "A100-80", prompts)


def test_a_card_without_nvlink_gains_less_from_others() -> None:
    slower = replace(known_models()["qwen3-32b"])
    gain = [rows(slower, card, gpus=4) / rows(slower, card, gpus=2) for card in ("A100-80", "A100-80-PCIE")]
    assert gain[0] > gain[1]


def test_the_range_is_wide_where_hardly_a_row_fits() -> None:
    tight, roomy = estimate("gpt-oss-120b", "H100"), estimate("gpt-oss-120b", "H200")
    assert tight is not None
    assert roomy is not None
    assert tight.high / tight.low > 1.5 * OFF_BY**2
    assert roomy.high / roomy.low < 1.1 * OFF_BY**2


def test_no_estimate_without_measurements() -> None:
    assert estimate("qwen3-0.6b", "H100", dtype="float32") is None
    assert estimate("qwen3-8b", "L4", {"prompt_tokens": 200_000, "output_tokens": 1}) is None
