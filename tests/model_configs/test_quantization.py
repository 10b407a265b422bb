"""Bits of quantized weights: from what config.json says, in the words of each library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from daft_vllm.model_configs import derived_config, known_models
from daft_vllm.model_configs.cards import card_of
from daft_vllm.model_configs.memory import plan_memory, weights_of
from daft_vllm.model_configs.quantization import quantization_of, read_quantization

GROUP = {"targets": ["Linear"], "input_activations": {"num_bits": 8, "type": "float", "dynamic": True}}
MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}


def tensors(scheme: str, **weights: Any) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": scheme,
        "config_groups": {"group_0": {**GROUP, "weights": weights}},
        "ignore": ["lm_head"],
        "kv_cache_scheme": {"num_bits": 8},
    }


BYTES: list[tuple[dict[str, Any], float | None]] = [
    ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 0.52),
    ({"quant_method": "gptq", "bits": 8, "group_size": -1, "dynamic": {"+:.*": {"bits": 4}}}, 1.0),
    ({"quant_method": "gptq", "bits": 3, "group_size": 32}, 0.449),
    ({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}, 0.52),
    ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, 0.539),
    (tensors("float-quantized", num_bits=8, type="float", strategy="channel", group_size=None), 1.0),
    (tensors("pack-quantized", num_bits=4, type="int", strategy="group", group_size=128), 0.52),
    (tensors("nvfp4-pack-quantized", num_bits=4, type="float", group_size=16), 0.5625),
    (tensors("float-quantized", num_bits=8, type="float", strategy="block", block_structure=[128, 128]), 1.0),
    ({"quant_method": "modelopt", "quant_algo": "FP8"}, 1.0),
    ({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 16}}, 0.5625),
    (
        {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": {"quant_algo": "FP8"}}},
        1.0,
    ),
    ({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}, 1.0),
    ({"quant_method": "fbgemm_fp8"}, 1.0),
    ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}}}, 1.0),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 0.52),
    ({"quant_method": "torchao", "quant_type": {"default": {"_type": "Int4WeightOnlyConfig"}}}, 0.52),
    ({"quant_method": "auto-round", "bits": 2, "group_size": 32}, 0.32),
    ({"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64}}}, 0.539),
    (MXFP4, 0.531),
    ({"quant_method": "of tomorrow"}, None),
    ({"bits": "four", "config_groups": [None, 4]}, None),
]


@pytest.mark.parametrize(("saved", "size"), BYTES)
def test_bytes_of_a_weight(saved: dict[str, Any], size: float | None) -> None:
    found = read_quantization(saved).weight_bytes
    assert found == (None if size is None else pytest.approx(size, rel=0.01))


def test_every_name_that_vllm_knows() -> None:
    """None raises, as an argument or in a model's config; the weights are never more than with 16 bits."""
    from vllm.model_executor.layers.quantization import QuantizationMethods

    from daft_vllm.udf.preflight.architecture import vllm_quantizations

    names = get_args(QuantizationMethods)
    assert vllm_quantizations() == set(names)
    for model in ("qwen3-8b", "qwen3-30b-a3b"):
        config = known_models()[model]
        whole = weights_of(config)
        for name in (*names, "gptq_marlin_24", "no such thing"):
            weights = weights_of(config, {"quantization": name})
            assert 0 < weights <= whole
            assert plan_memory(config.architecture, weights, card_of("L4")).weights == weights
    dense = known_models()["qwen3-8b"]
    assert weights_of(dense, {"quantization": "int8_per_channel_weight_only"}) == weights_of(dense)  # experts only
    assert weights_of(dense, {"quantization": "fp8_per_block"}) < 0.7 * weights_of(dense)


def test_a_model_with_a_kind_that_nobody_knows(tiny: str, tmp_path: Path) -> None:
    """Its files say how large it is; without them 16 bits are counted."""
    settings = json.loads((Path(tiny) / "config.json").read_text())
    for saved in [saved for saved, _ in BYTES]:
        (tmp_path / "config.json").write_text(json.dumps({**settings, "quantization_config": saved}))
        config = derived_config(str(tmp_path))
        assert config.parameters == derived_config(tiny).parameters
        assert 0 < weights_of(config) <= 2 * config.parameters
        assert weights_of(config, file_bytes=12345) == 12345
    assert (
        weights_of(derived_config(tiny), file_bytes=12345) != 12345
    )  # a type to load may differ from that in the files


def test_a_quantization_in_a_file_of_its_own(tiny: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((Path(tiny) / "config.json").read_text())
    saved = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 16}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(saved))
    found = quantization_of(derived_config(str(tmp_path)))
    assert found is not None
    assert (found.method, found.weight_bytes, found.group) == ("modelopt", 0.5625, 16)


def test_weights_that_transformers_cannot_count(tiny: str, tmp_path: Path) -> None:
    settings = json.loads((Path(tiny) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**settings, "architectures": ["DeciLMForCausalLM"]}))
    config = derived_config(str(tmp_path))
    assert config.parameters == 0
    assert weights_of(config, file_bytes=12345) == 12345
