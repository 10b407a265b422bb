"""Estimates of rows per second: what has an effect, in which direction, and where there is no estimate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from daft_vllm import check
from daft_vllm.engine import EngineConfig
from daft_vllm.engine.setup.devices.driver import GpuState
from daft_vllm.model_configs import ModelConfig, known_models
from daft_vllm.model_configs.advice import faster
from daft_vllm.model_configs.batching import SHAPES
from daft_vllm.model_configs.cards import card_of, cards
from daft_vllm.model_configs.memory import block_tokens, plan_memory, vllm_defaults, weights_of
from daft_vllm.model_configs.resolution import resolve
from daft_vllm.model_configs.throughput import OFF_BY, Throughput, estimate_throughput
from daft_vllm.udf.preflight import load

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
    assert rate.hours(3_600_000) == pytest.approx((1000 / rate.high, 1000 / rate.low))


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
    assert rows("qwen3-8b", "H100", quantization="fp8_per_tensor") > 1.2 * base
    assert rows("qwen3-8b", "H100", gpus=4) > 1.5 * base
    assert rows("qwen3-8b", "H100", max_num_seqs=16) < 0.7 * base
    assert rows("qwen3-30b-a3b-2507", "H100") > 1.3 * rows("qwen3-32b", "H100")


def test_a_cache_in_8_bits_pays_where_the_cache_is_full() -> None:
    long = {"prompt_tokens": 4000, "output_tokens": 500}
    assert rows("qwen3-8b", "L4", long, kv_cache_dtype="fp8") > 1.2 * rows("qwen3-8b", "L4", long)


def test_weights_in_8_bits_are_multiplied_as_such_only_by_cards_that_can() -> None:
    prompts = {"prompt_tokens": 2000, "output_tokens": 1}
    assert rows("qwen3-8b", "L4", prompts, quantization="fp8_per_tensor") > 1.4 * rows("qwen3-8b", "L4", prompts)
    assert rows("qwen3-8b", "A100-80", prompts, quantization="fp8_per_tensor") < rows("qwen3-8b", "A100-80", prompts)


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


def settings(model: str, card: str, gpus: float = 1, **args: Any) -> dict[str, Any]:
    found = resolve(known_models()[model], card=card_of(card), gpus=gpus, user=args)
    return {name: setting.value for name, setting in found.items() if name.startswith("max_num_")}


def test_a_small_model_gets_more_sequences_where_there_is_room() -> None:
    assert settings("qwen3-0.6b", "A100-80") == {"max_num_seqs": 1024}
    assert settings("qwen3-0.6b", "A100-80", max_num_seqs=32) == {"max_num_seqs": 32}  # the user's stays
    assert settings("qwen3-8b", "L4") == {}  # the cache holds fewer than vLLM's default anyway
    assert settings("qwen3-8b", "H100") == {}


def test_a_chosen_batch_is_one_that_vllm_takes() -> None:
    assert settings("qwen3-0.6b", "A100-80", max_num_batched_tokens=900)["max_num_seqs"] <= 900
    assert settings("qwen3-0.6b", "A100-80", enable_chunked_prefill=False) == {}
    assert settings("qwen3-0.6b", "A100-80", max_num_seqs=None, max_num_batched_tokens=None)["max_num_seqs"] == 1024
    assert settings("qwen3-0.6b", "A100-80", max_model_len=-1) == {"max_num_seqs": 1024}


def test_half_a_card_is_half_as_fast() -> None:
    config = known_models()["qwen3-0.6b"]
    rates = []
    for gpus in (1.0, 0.5):
        plan = plan_memory(config.architecture, weights_of(config), card_of("H100"), gpus=gpus)
        found = estimate_throughput(config, plan, prompt_tokens=2000, output_tokens=8)
        assert found is not None
        rates.append(found.rows)
    assert 0.4 < rates[1] / rates[0] < 0.65


def test_weights_that_fill_the_memory_get_fewer_sequences() -> None:
    """vLLM's default of 1,024 takes 3.5 GiB for their logits, and the cache has 3."""
    found = settings("gpt-oss-120b", "H100")
    assert found["max_num_seqs"] <= 256
    assert rows("gpt-oss-120b", "H100", **found) > 1.2 * rows("gpt-oss-120b", "H100")


@pytest.mark.parametrize("card", ["T4", "L4", "A100-40", "H100", "B200"])
def test_the_chosen_batch_is_never_slower_by_estimate(card: str) -> None:
    for model in ("smollm2-135m", "gemma-3-4b", "qwen3-8b", "qwen3-30b-a3b-2507", "gpt-oss-20b", "llama-3.3-70b"):
        chosen = settings(model, card, gpus=8)
        for prompt, output in SHAPES:
            shape = {"prompt_tokens": prompt, "output_tokens": output}
            before, after = estimate(model, card, shape, gpus=8), estimate(model, card, shape, gpus=8, **chosen)
            if before is not None:
                assert after is not None
                assert after.rows > 0.97 * before.rows


def test_an_engine_that_is_given_the_card_gets_the_same_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    state = GpuState("0", "NVIDIA A100-SXM4-80GB", card_of("A100-80").memory_bytes, 10, (8, 0), "570.1")
    monkeypatch.setattr(load, "gpu_states", lambda ids: [state])
    config = load.with_card_settings(EngineConfig("Qwen/Qwen3-0.6B", {"max_model_len": 4096}, gpus=1))
    assert config.engine_args == {"max_model_len": 4096, "max_num_seqs": 1024}


def changes(model: str, card: str, gpus: int = 1, **args: Any) -> str:
    config = known_models()[model]
    plan = plan_memory(config.architecture, weights_of(config, args), card_of(card), gpus=gpus, engine_args=args)
    return "\n".join(faster(config, plan, args, shape=(512, 0, 128)))


def test_what_would_be_faster_is_said() -> None:
    assert 'engine_args={"kv_cache_dtype": "fp8"}' in changes("qwen3-8b", "L4")
    assert "fp8" not in changes("qwen3-8b", "A100-80")  # which has no FP8
    assert "kv_cache_dtype" not in changes("qwen3-8b", "L4", kv_cache_dtype="fp8")
    assert "gpus=1 and max_concurrency=4" in changes("qwen3-8b", "A100-80-PCIE", gpus=4)
    assert changes("qwen3-32b", "L4") == ""  # it doesn't fit


def test_short_prefixes_of_hybrid_models_are_not_cached() -> None:
    """Qwen3.5-35B-A3B keeps 2 MiB and 48 KiB in each layer of linear attention, and 2 KiB a token in the others."""
    found = {name: block_tokens(known_models()[name].architecture) for name in ("qwen3.5-35b-a3b", "qwen3-8b")}
    assert found == {"qwen3.5-35b-a3b": 1056, "qwen3-8b": 16}
    report = check(model="qwen3.5-35b-a3b", gpu="H200")
    assert any("KV blocks of 1056 tokens: rows that share fewer" in one.seen for one in report.checks)
