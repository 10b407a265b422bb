"""Every model's file: its own numbers give the published ones, and vLLM knows what it names."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest

from daft_vllm.engine.setup.arg_types import vllm_engine_arg_names
from daft_vllm.errors import OptionError
from daft_vllm.model_configs import ModelConfig, config_of, count_parameters, derived_config, known_models
from daft_vllm.model_configs.cards import card_of, cards
from daft_vllm.model_configs.memory import plan_memory, sequence_bytes, weight_bytes, weights_of
from daft_vllm.model_configs.resolution import goals, resolve


def hf_config(config: ModelConfig) -> object:
    import copy

    from transformers import AutoConfig

    return AutoConfig.for_model(**copy.deepcopy(dict(config.config)))


def architecture_layers(config: ModelConfig) -> list[str]:
    return list(getattr(hf_config(config).get_text_config(), "layer_types", None) or ())  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", known_models())
def test_the_numbers_give_the_published_count(name: str) -> None:
    config = known_models()[name]
    count = count_parameters(hf_config(config))
    architecture = config.architecture
    if config.task == "embed" and architecture.embeddings == 2:  # the output matrix is no part of such a model
        count -= architecture.vocabulary * architecture.hidden_size
    assert count == pytest.approx(config.parameters, rel=0.02)


def test_every_file_is_complete() -> None:
    names = [config.hub_name.lower() for config in known_models().values()]
    assert len(set(names)) == len(names) > 50
    for name, config in known_models().items():
        assert config.name == name
        assert isinstance(config.sources["read"], datetime.date)
        architecture = config.architecture
        assert architecture.max_model_len == config.max_model_len
        assert set(architecture.takes) == set(config.modalities) - {"text"}
        assert bool(architecture.experts) == (config.active_parameters is not None)
        text = config.config.get("text_config", config.config)
        kinds = architecture_layers(config)
        stateful = [kind for kind in kinds if kind in ("linear_attention", "mamba", "conv")]
        without = text.get("num_kv_shared_layers", 0) + len(stateful) + kinds.count("moe") + kinds.count("mlp")
        assert sum(kind.layers for kind in architecture.cache) == architecture.layers - without
        assert bool(architecture.state_bytes) == bool(stateful)


def test_vllm_knows_what_is_named() -> None:
    from vllm.model_executor.models import ModelRegistry
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    known = vllm_engine_arg_names()
    assert known is not None
    served = ModelRegistry.get_supported_archs()
    of_cards = [overlay for config in known_models().values() for overlay in config.cards.values()]
    for said in (*known_models().values(), *cards().values(), *goals().values(), *of_cards):
        assert set(said.why) == set(said.engine_args) <= known
    for config in known_models().values():
        assert set(config.cards) <= set(cards())
        for name, overlay in config.cards.items():  # else the process that loads could not tell what the user gave
            assert not set(overlay.engine_args) & {*config.engine_args, *cards()[name].engine_args}
    for config in known_models().values():
        prompting = config.prompting
        assert (
            prompting.reasoning_parser is None or prompting.reasoning_parser in ReasoningParserManager.list_registered()
        )
        assert prompting.tool_parser is None or prompting.tool_parser in ToolParserManager.list_registered()
        assert (prompting.thinking == "never") == (prompting.reasoning_parser is None)
        # vLLM runs SmolLM3 by way of transformers.
        assert config.config["architectures"][0] in served or config.config["model_type"] == "smollm3"


def with_experts_apart() -> dict[str, ModelConfig]:
    """Return the models with ``enable_expert_parallel`` in a setting of theirs."""
    found = {}
    for name, config in known_models().items():
        said = [config.engine_args, *(overlay.engine_args for overlay in config.cards.values())]
        if any("enable_expert_parallel" in args for args in said):
            found[name] = config
    return found


@pytest.mark.parametrize("name", with_experts_apart())
def test_vllm_takes_whole_experts_on_one_gpu_too(name: str, tmp_path: Path) -> None:
    """A card's settings hold for each number of GPUs; vLLM refuses this one for models without experts."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    config = known_models()[name]
    assert config.active_parameters is not None
    (tmp_path / "config.json").write_text(json.dumps(dict(config.config)), encoding="utf-8")
    args = AsyncEngineArgs(
        model=str(tmp_path), max_model_len=1024, skip_tokenizer_init=True, enable_expert_parallel=True
    )
    assert args.create_engine_config().parallel_config.enable_expert_parallel


def test_a_token_of_the_cache() -> None:
    """Llama-3.1-8B keeps 32 layers of 8 heads of 128 numbers, twice, in 16 bits: 128 KiB a token."""
    llama = known_models()["llama-3.1-8b"].architecture
    assert sequence_bytes(llama, 1600) == 1600 * 128 * 1024
    assert sequence_bytes(llama, 1600, tensor_parallel=8) == 1600 * 16 * 1024
    assert sequence_bytes(llama, 1600, tensor_parallel=16) == 1600 * 16 * 1024  # a head is the least
    assert sequence_bytes(llama, 1600, element_bytes=1) == 1600 * 64 * 1024
    assert sequence_bytes(llama, 1601) == 1616 * 128 * 1024  # whole blocks


def test_sliding_windows_keep_less() -> None:
    gemma = known_models()["gemma-3-27b"].architecture
    layer = 2 * 16 * 128 * 2
    assert sequence_bytes(gemma, 512) == 70 * 512 * layer  # 10 full layers, 52 sliding ones in groups of 10
    long = sequence_bytes(gemma, 131072, batched_tokens=8192)
    assert long < 0.25 * 70 * 131072 * layer
    assert sequence_bytes(gemma, 131072, batched_tokens=16384) > long


def test_layers_that_share_blocks() -> None:
    """DeepSeek-V4's, as vLLM's own ``_get_packed_kv_cache_groups`` and ``max_memory_usage_pages`` count them."""
    v4 = known_models()["deepseek-v4-flash"].architecture
    assert v4.packed is not None
    assert v4.packed.block_bytes == 1_002_240
    for tokens, batched, blocks in ((1024, 8192, 424), (65_536, 2048, 1114), (1_048_576, 16_384, 10_778)):
        for gpus in (1, 8):
            held = sequence_bytes(v4, tokens, batched_tokens=batched, tensor_parallel=gpus)
            assert held == blocks * 1_002_240


def test_experts_of_fewer_bits_than_the_rest() -> None:
    """277.0 of DeepSeek-V4-Flash's 284.3 billion weights are experts' in mxfp4; vLLM's recipe asks for 200 GB."""
    assert 155e9 < weights_of(known_models()["deepseek-v4-flash"]) < 158e9


def test_what_fits_where() -> None:
    def plan(model: str, card: str, **options: object) -> object:
        config = known_models()[model]
        weights = weight_bytes(config.parameters, config.architecture, quantization=config.quantization)
        return plan_memory(config.architecture, weights, card_of(card), **options)  # type: ignore[arg-type]

    assert not plan("gemma-3-27b", "L4").fits  # type: ignore[attr-defined]
    assert plan("gemma-3-27b", "A100-80").fits  # type: ignore[attr-defined]
    assert plan("gemma-3-4b", "L4").fits  # type: ignore[attr-defined]
    assert not plan("llama-3.3-70b", "H100").fits  # type: ignore[attr-defined]
    assert plan("llama-3.3-70b", "H100", gpus=4).fits  # type: ignore[attr-defined]
    assert plan("gpt-oss-120b", "H100").fits  # type: ignore[attr-defined]
    whole = plan("qwen3-8b", "L4", engine_args={"max_model_len": 40960})
    assert not whole.fits  # type: ignore[attr-defined]
    fitted = plan("qwen3-8b", "L4")
    assert 1000 < fitted.max_model_len < 40960  # type: ignore[attr-defined]
    assert fitted.fits  # type: ignore[attr-defined]


def test_settings_and_where_they_are_from() -> None:
    config = known_models()["qwen3-8b"]
    settings = resolve(config, card=card_of("l4"), goal="long-context", user={"max_num_seqs": 8, "seed": 1})
    assert settings["reasoning_parser"].origin == "model qwen3-8b"
    assert (settings["max_num_seqs"].value, settings["max_num_seqs"].origin) == (8, "given")
    assert resolve(config, goal="long-context")["max_num_seqs"].origin == "goal long-context"
    oss = known_models()["gpt-oss-20b"]
    assert resolve(oss, card=card_of("H100"))["max_cudagraph_capture_size"].origin == "model gpt-oss-20b on H100"
    assert "max_cudagraph_capture_size" not in resolve(oss, card=card_of("L4"))
    assert resolve(config_of("qwen3-vl-8b"))["limit_mm_per_prompt"].why
    with pytest.raises(OptionError, match=r"no goal 'throughputt'\. Did you mean 'throughput'"):
        resolve(config, goal="throughputt")
    with pytest.raises(OptionError, match=r"no card 'H10'\. Did you mean 'H100'"):
        card_of("H10")
    for dtype in ("float16", "half"):
        with pytest.raises(OptionError, match=r"gemma-3-4b-it gives empty or garbled answers in float16"):
            resolve(config_of("google/gemma-3-4b-it"), user={"dtype": dtype})
    assert resolve(config_of("gemma-3-4b"), user={"dtype": "auto"})


def test_models_that_no_file_describes(tiny: str) -> None:
    config = derived_config(tiny)
    assert config.parameters == count_parameters(hf_config(config)) > 3_000_000
    assert config.architecture.layers == 2
    assert config.max_model_len == 2048
