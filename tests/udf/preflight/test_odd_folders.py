"""Folders and names of models with odd content: a sentence that helps, and nothing that can't run is called ok."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from daft_vllm import check
from daft_vllm.engine import EngineConfig
from daft_vllm.engine.setup.context import config_problem
from daft_vllm.engine.setup.preflight import check_before_load
from daft_vllm.errors import ModelError
from daft_vllm.model_configs import known_models
from tests.helpers import replace_file

pytestmark = pytest.mark.usefixtures("offline")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_key_value_heads": -1}, "num_key_value_heads is -1"),
        ({"max_position_embeddings": 0}, "max_position_embeddings is 0"),
        ({"torch_dtype": "foo"}, "no type of numbers"),
        ({"text_config": "x"}, "text_config is 'x', not an object"),
        ({"quantization_config": "awq"}, "quantization_config is 'awq', not an object"),
        ({"quantization_config": {"group_size": 64, "bits": 4}}, "Apple's MLX"),
        ({"num_hidden_layers": 31}, "no layer 30"),
        ({"rope_scaling": {"rope_type": "wobble", "factor": 2.0}}, "no RoPE of type 'wobble'"),
        ({"architectures": None}, "names no architecture"),
        ({"architectures": "LlamaForCausalLM"}, "names no architecture"),
        (
            {"model_type": "foo", "auto_map": {"AutoConfig": "configuration_foo.FooConfig"}},
            'engine_args={"trust_remote_code": True}',
        ),
    ],
)
def test_values_that_no_model_has(values: dict[str, Any], says: str, model: Path) -> None:
    path = model / "config.json"
    replace_file(path, json.dumps({**json.loads(path.read_text()), **values}).encode())
    report = check(model=str(model))
    assert not report.ok
    assert any(says in one.seen for one in report.checks if one.status == "failure"), report


def test_values_are_looked_at_before_a_load(model: Path) -> None:
    path = model / "config.json"
    replace_file(path, json.dumps({**json.loads(path.read_text()), "vocab_size": 0}).encode())
    with pytest.raises(ModelError, match="vocab_size is 0"):
        check_before_load(EngineConfig(str(model)), [], {})


def test_no_known_model_has_such_values() -> None:
    assert [name for name, one in known_models().items() if config_problem(dict(one.config))] == []


def _safetensors(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (_safetensors(b"{}"), "has no tensors"),
        (_safetensors(b'{"a": {"dtype": "F32", "data_offsets": [0, 0]}}'), "damaged header"),
        (_safetensors(b'{"a": {"dtype": "F32", "shape": "x", "data_offsets": [0, 0]}}'), "damaged header"),
    ],
)
def test_headers_of_weights(content: bytes, says: str, model: Path) -> None:
    replace_file(model / "model.safetensors", content)
    assert says in check(model=str(model))["model"].seen


def test_a_chat_template_that_is_damaged(model: Path) -> None:
    replace_file(model / "chat_template.jinja", b"{% for x in %}")
    found = check(model=str(model))["chat template"]
    assert found.status == "failure"
    assert "damaged" in found.seen


@pytest.mark.parametrize("name", ["model.onnx", "tf_model.h5", "flax_model.msgpack", "consolidated.00.pth"])
def test_weights_of_other_programs(name: str, model: Path) -> None:
    (model / "model.safetensors").unlink()
    (model / name).write_bytes(b"x")
    assert "only, and vLLM reads safetensors" in check(model=str(model))["model"].seen


def test_links_that_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "config.json").symlink_to("../blobs/1")
    assert "links to files that aren't there" in check(model=str(tmp_path))["model"].seen


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("https://huggingface.co/Qwen/Qwen3-8B/tree/main", "model='Qwen/Qwen3-8B'."),
        ("hf://Qwen/Qwen3-8B", "model='Qwen/Qwen3-8B'."),
        ("hf.co/Qwen/Qwen3-8B", "model='Qwen/Qwen3-8B'."),
        ("Qwen/Qwen3-8B@main", 'engine_args={"revision": "main"}'),
        ("Qwen/Qwen3-8B/", "model='Qwen/Qwen3-8B'."),
        ("qwen3-8b ", "model='qwen3-8b'."),
        ("", "model is empty"),
        ("s3://bucket/model", "copy the model's files into a folder"),
        ("x" * 500, "more than any name on the hub"),
    ],
)
def test_names_that_are_nearly_right(name: str, says: str) -> None:
    found = check(model=name)["model"]
    assert found.status == "failure"
    assert says in found.seen
