"""Numbers of GPUs that a model can be split over: our rules and vLLM's, on every model that is described."""

from __future__ import annotations

import copy
import types
from typing import Any

import pytest
from typer.testing import CliRunner

from daft_vllm import check, prompt
from daft_vllm.cli import app
from daft_vllm.errors import ModelError, OptionError
from daft_vllm.model_configs import ModelConfig, known_models
from daft_vllm.model_configs.splitting import heads_problem, possible_sizes, split_advice, split_problem

NUMBERS = (1, 2, 3, 4, 5, 6, 8, 16)


def arch_config(config: ModelConfig) -> Any:
    import vllm.config  # noqa: F401  # else the next import is a circle
    from transformers import AutoConfig
    from vllm.transformers_utils.model_arch_config_convertor import (
        MODEL_ARCH_CONFIG_CONVERTORS,
        ModelArchConfigConvertorBase,
    )

    hf = AutoConfig.for_model(**copy.deepcopy(dict(config.config)))
    convertor = MODEL_ARCH_CONFIG_CONVERTORS.get(hf.model_type, ModelArchConfigConvertorBase)
    return convertor(hf, hf.get_text_config()).convert()


def vllm_refuses(config: ModelConfig, arch: Any, size: int) -> bool:
    """Whether vLLM's own check of a model's parallel sizes raises."""
    from vllm.config import ModelConfig as VllmModelConfig

    model = types.SimpleNamespace(model_arch_config=arch, multimodal_config=None, use_mla=True)
    parallel = types.SimpleNamespace(
        enable_hc_sp=False,
        tensor_parallel_size=size,
        enable_expert_parallel=False,
        pipeline_parallel_size=1,
        decode_context_parallel_size=1,
    )
    try:
        VllmModelConfig.verify_with_parallel_config(model, parallel)
    except ValueError:
        return True
    return False


def test_every_model_by_vllms_own_rule() -> None:
    refused = 0
    for config in known_models().values():
        arch = arch_config(config)
        for size in NUMBERS:
            refuses = vllm_refuses(config, arch, size)
            refused += refuses
            assert (heads_problem(config, size) is not None) == refuses, (config.name, size)
            if refuses:
                assert split_problem(config, size) is not None
            if size == 1:
                assert split_problem(config, size) is None
    assert refused > 100


def test_kv_heads_and_experts() -> None:
    """phi-4 has 10 KV heads: vLLM's ``QKVParallelLinear`` asserts that they can be divided."""
    from vllm.distributed.utils import divide

    config = known_models()["phi-4"]
    for size in (2, 4, 5, 8):
        try:
            divide(10, size) if size <= 10 else divide(size, 10)
            divides = True
        except AssertionError:
            divides = False
        assert (split_problem(config, size) is None) == (divides and 40 % size == 0), size
    assert possible_sizes(config) == [1, 2, 5]
    assert "10 KV heads" in str(split_problem(config, 4))


def fp8(config: ModelConfig, block: int) -> ModelConfig:
    import dataclasses

    saved = {"quant_method": "fp8", "weight_block_size": [block, block]}
    return dataclasses.replace(config, config={**config.config, "quantization_config": saved}, quantization="fp8")


@pytest.mark.parametrize("name", ["qwen2.5-7b", "qwen2.5-1.5b", "qwen3-8b", "llama-3.2-3b", "gemma-2-9b", "olmo-3-7b"])
@pytest.mark.parametrize("block", [128, 96])
def test_blocks_of_fp8_by_vllms_own_rule(name: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    import vllm.distributed
    from vllm.model_executor.layers.quantization.utils.fp8_utils import validate_fp8_block_shape

    monkeypatch.setattr(vllm.distributed, "get_tensor_model_parallel_world_size", lambda: 1)
    config = fp8(known_models()[name], block)
    text = config.config
    heads, keys = text["num_attention_heads"], text["num_key_value_heads"]
    width = text.get("head_dim") or text["hidden_size"] // heads
    for size in (2, 4, 8):
        if heads_problem(config, size) is not None:
            continue
        layer = types.SimpleNamespace(tp_size=size)
        shapes = [  # input, input of a GPU, outputs of a GPU, output
            (heads * width, heads * width // size, [text["hidden_size"]], text["hidden_size"]),
            (text["intermediate_size"], text["intermediate_size"] // size, [text["hidden_size"]], text["hidden_size"]),
            (text["hidden_size"], text["hidden_size"], [text["intermediate_size"] // size] * 2, None),
            (
                text["hidden_size"],
                text["hidden_size"],
                [heads * width // size, *[max(1, keys // size) * width] * 2],
                None,
            ),
        ]
        refused = False
        for inputs, part, outputs, output in shapes:
            try:
                validate_fp8_block_shape(layer, inputs, output or sum(outputs) * size, part, outputs, [block, block])
            except ValueError:
                refused = True
        assert (split_problem(config, size) is not None) == refused, (size, split_problem(config, size))


def test_groups_of_gptq() -> None:
    import dataclasses

    from vllm.distributed.utils import verify_group_size_divides_partition

    saved = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    base = known_models()["qwen2.5-7b"]
    config = dataclasses.replace(base, config={**base.config, "quantization_config": saved}, quantization="gptq")
    assert split_problem(config, 4) is None
    wide = dataclasses.replace(config, config={**config.config, "intermediate_size": 18944 + 256})
    verify_group_size_divides_partition(18944 // 4, 128)
    with pytest.raises(ValueError, match="group_size"):
        verify_group_size_divides_partition((18944 + 256) // 4, 128)
    assert "groups of 128" in str(split_problem(wide, 4))


def test_check_plans_only_what_vllm_accepts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for model, gpus, said in (
        ("qwen2.5-7b", 8, "gpus=4 and max_concurrency=2"),
        ("qwen2.5-7b", 3, "28 attention heads can't be divided by 3"),
        ("smollm2-135m", 2, "9 attention heads can't be divided by 2"),
        ("phi-4", 4, "10 KV heads"),
    ):
        report = check(model=model, gpu="L4", gpus=gpus)
        assert report["memory"].status == "failure"
        assert said in report["memory"].seen
    assert check(model="qwen2.5-7b", gpu="L4", gpus=4)["memory"].status == "ok"
    assert check(model="smollm2-135m", gpu="L4", gpus=3)["memory"].status == "ok"
    result = CliRunner().invoke(app, ["config", "qwen2.5-7b", "--gpu", "L4", "--gpus", "8"], env={"COLUMNS": "200"})
    assert result.exit_code == 1
    assert "vLLM can't split it over 8 GPUs" in result.output
    assert split_advice(known_models()["qwen2.5-7b"], 8).startswith("Use gpus=1, 2 or 4.")


def test_prompt_refuses_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import daft

    monkeypatch.setattr("daft_vllm.engine.setup.devices.room.visible_gpus", lambda: [*map(str, range(8))])
    with pytest.raises(ModelError, match="28 attention heads can't be divided by 8"):
        prompt(daft.col("q"), model="qwen2.5-7b", gpus=8)
    stages: dict[str, Any] = {"pipeline_parallel_size": 2}
    prompt(daft.col("q"), model="qwen2.5-7b", gpus=8, engine_args=stages)  # 4 GPUs for each of two stages
    with pytest.raises(OptionError, match="can't be divided by pipeline_parallel_size=2"):
        prompt(daft.col("q"), model="qwen2.5-7b", gpus=3, engine_args=stages)


def test_check_on_every_model_and_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing raises, and what is called ok is never refused by vLLM's own rule."""
    from daft_vllm.model_configs.cards import card_of
    from daft_vllm.model_configs.resolution import resolve
    from daft_vllm.udf.preflight.architecture import check_split
    from daft_vllm.udf.preflight.memory import check_memory
    from daft_vllm.udf.preflight.model import Model

    called_ok = 0
    for name, config in known_models().items():
        arch = arch_config(config)
        for card in map(card_of, ("L4", "A100-80", "H100")):
            model = Model(name, resolve(config, card=card))
            for gpus in (1, 2, 4, 8):
                try:
                    check_split(model, gpus)
                    check_memory(model, card, gpus)
                except ModelError as e:
                    assert "fit" in str(e) or "split" in str(e)  # noqa: PT017
                    continue
                called_ok += 1
                assert not vllm_refuses(config, arch, gpus), (name, card.name, gpus)
    assert called_ok > 900


def test_a_plan_for_a_model_uses_all_gpus() -> None:
    def plan(*args: str) -> str:
        return CliRunner().invoke(app, ["plan", "--rows", "100000", *args]).output

    assert "gpus=1, max_concurrency=8" in plan("--model", "qwen2.5-7b", "--gpu", "L4")
    assert "gpus=4, max_concurrency=2" in plan("--model", "gemma-3-27b", "--gpu", "L4")
    assert "gpus=2, max_concurrency=8" in plan("--model", "phi-4", "--gpu", "L4", "--workers", "2")
    assert "doesn't fit 1 x L4" in plan("--model", "gemma-3-27b", "--gpu", "L4", "--gpus", "1")
    assert "--model needs a card" in plan("--model", "phi-4")
