"""Code that comes with a model is neither run nor asked about, unless the user trusts it by name."""

from __future__ import annotations

import ast
import builtins
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from daft import col

import daft_vllm
from daft_vllm import EngineConfig, check, prompt
from daft_vllm.engine.setup.adapters import adapter_args, check_adapters
from daft_vllm.engine.setup.model_files.pickles import safetensors_args
from daft_vllm.engine.setup.preflight import check_before_load, load_tokenizer, local_tokenizer
from daft_vllm.errors import ModelError
from daft_vllm.model_configs import derived_config, known_models
from daft_vllm.model_configs.resolution import goals
from daft_vllm.udf.preflight.files import _on_hub

ROOT = Path(daft_vllm.__file__).parents[2]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The questions that were asked in the terminal. Each is answered with yes."""
    questions: list[str] = []

    def answer(question: str = "") -> str:
        questions.append(question)
        return "y"

    monkeypatch.setattr(builtins, "input", answer)
    load_tokenizer.cache_clear()
    return questions


@pytest.fixture
def model(tiny: str, tmp_path: Path) -> Path:
    """A model whose config, tokenizer and processor are Python code of its own, which makes a file when it is run."""
    folder = tmp_path / "model"
    shutil.copytree(tiny, folder)
    (folder / "own.py").write_text(f"open({str(tmp_path / 'was-run')!r}, 'w')\n")
    (folder / "model.safetensors").write_bytes(b"\x02" + bytes(7) + b"{}")
    own = {"AutoConfig": "own.Config", "AutoTokenizer": ["own.Tokenizer", None], "AutoProcessor": "own.Processor"}
    for name in ("config.json", "tokenizer_config.json", "processor_config.json"):
        path = folder / name
        found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
        found |= {"auto_map": own, "tokenizer_class": "OwnTokenizer", "processor_class": "OwnProcessor"}
        if name == "config.json":
            found["model_type"] = "own"
        path.write_text(json.dumps(found))
    return folder


@pytest.mark.parametrize("mistral", [False, True])
def test_nothing_is_asked_or_run_before_the_load(model: Path, asked: list[str], *, mistral: bool) -> None:
    if mistral:  # the preflight has a way of its own for these
        (model / "tekken.json").write_text("{}")
        (model / "consolidated.safetensors").touch()
    report = str(check(model=str(model), engine_args={"load_format": "dummy"}))
    assert 'engine_args={"trust_remote_code": True}' in report
    local_tokenizer(str(model))
    with pytest.raises(ModelError, match="Python code of its own"):
        derived_config(str(model))
    check_before_load(EngineConfig(str(model), {"load_format": "dummy"}), (), {})
    prompt(col("q"), ["yes", "no"], model=str(model), engine_args={"load_format": "dummy"}, gpus=0)
    assert asked == []
    assert not (model.parent / "was-run").exists()


def test_every_call_says_whether_code_is_trusted() -> None:
    """transformers' default is to ask in the terminal."""
    calls = [
        (path, node)
        for folder in ("engine", "udf", "model_configs", "src/daft_vllm", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("Auto")
        if ast.unparse(node.func).endswith(".from_pretrained")
    ]
    assert len(calls) > 4
    for path, call in calls:
        assert any(one.arg == "trust_remote_code" for one in call.keywords), f"{path}:{call.lineno}"


def test_none_of_our_settings_trusts_code_or_reads_pickles() -> None:
    settings = [known.engine_args for known in known_models().values()] + [
        goal.engine_args for goal in goals().values()
    ]
    settings += [overlay.engine_args for known in known_models().values() for overlay in known.cards.values()]
    assert len(settings) > 100
    assert not any({"trust_remote_code", "load_format"} & args.keys() for args in settings)


@pytest.fixture
def pickled(tiny: str, tmp_path: Path) -> Path:
    """A model whose weights are a pickle."""
    folder = tmp_path / "pickled"
    shutil.copytree(tiny, folder)
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04N.")
    return folder


def test_pickles_are_read_only_if_the_user_says_so(pickled: Path) -> None:
    with pytest.raises(ModelError, match=r'pickles \(pytorch_model.bin\).*pass engine_args=\{"load_format": "hf"\}'):
        check_before_load(EngineConfig(str(pickled)), (), {})
    assert "are pickles" in check(model=str(pickled))["model"].seen
    for args in ({"load_format": "auto"}, {"load_format": "safetensors"}):
        with pytest.raises(ModelError, match="are pickles"):
            check_before_load(EngineConfig(str(pickled), args), (), {})
    (pickled / "pytorch_model.bin").rename(pickled / "model.pt")
    for args in ({"load_format": "pt"}, {"load_format": "hf"}):
        check_before_load(EngineConfig(str(pickled), args), (), {})
        assert check(model=str(pickled), engine_args=args)["model"].status == "ok"
    (pickled / "model.safetensors").write_bytes(b"\x02" + bytes(7) + b"{}")
    assert "are pickles" not in check(model=str(pickled))["model"].seen


def test_vllm_gets_safetensors_only(tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert safetensors_args(tiny, {}) == {"load_format": "safetensors"}
    assert safetensors_args(tiny, {"load_format": "auto"}) == {"load_format": "safetensors"}
    assert safetensors_args(tiny, {"load_format": "hf"}) == {}
    (tmp_path / "consolidated-00001-of-00001.safetensors").touch()
    assert safetensors_args(str(tmp_path), {}) == {"load_format": "mistral"}
    files = {"a/mistral": ["consolidated.safetensors"], "a/pickles": []}
    monkeypatch.setattr(
        "vllm.transformers_utils.repo_utils.list_filtered_repo_files", lambda name, **_: files[name], raising=True
    )
    assert safetensors_args("a/mistral", {}) == {"load_format": "mistral"}
    assert safetensors_args("a/pickles", {}) == {"load_format": "safetensors"}


def test_pickles_on_the_hub_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Info:
        gated, downloads = False, 1

        def __init__(self, *names: str) -> None:
            self.siblings = [type("File", (), {"rfilename": name}) for name in names]

    def on_hub(*names: str, pickles: bool = False) -> str:
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: Info("config.json", *names))
        return str(_on_hub("a/b", None, elsewhere=False, pickles=pickles))

    with pytest.raises(ModelError, match=r"a/b on the hub are pickles \(pytorch_model.bin\)"):
        on_hub("pytorch_model.bin")
    assert on_hub("pytorch_model.bin", pickles=True).startswith("on the hub")
    assert on_hub("pytorch_model.bin", "model.safetensors").startswith("on the hub")


@pytest.mark.parametrize("ending", ["bin", "pt"])
def test_adapters_that_are_pickles(tmp_path: Path, ending: str) -> None:
    (tmp_path / "adapter_config.json").write_text('{"r": 8, "peft_type": "LORA"}')
    (tmp_path / f"adapter_model.{ending}").write_bytes(b"\x80\x04N.")
    adapters, trusted = {"a": str(tmp_path)}, {"load_format": "hf"}
    for refuse in (
        lambda: check_adapters(adapters, {}),
        lambda: adapter_args(adapters, {"load_format": "auto"}),  # those that were downloaded
        lambda: prompt(col("q"), adapters=adapters, adapter="a", gpus=0),
        lambda: EngineConfig("m", adapters=adapters),
    ):
        with pytest.raises(ModelError, match=rf"are a pickle \(adapter_model.{ending}\)"):
            refuse()
    check_adapters(adapters, trusted)
    assert adapter_args(adapters, trusted)["max_lora_rank"] == 8
    assert EngineConfig("m", trusted, adapters=adapters).adapters == adapters


def test_chat_templates_run_in_a_sandbox(tiny: str, tmp_path: Path) -> None:
    folder = tmp_path / "hostile"
    shutil.copytree(tiny, folder)
    run = "{{ ''.__class__.__mro__[1].__subclasses__() }}{{ cycler.__init__.__globals__.os.system('true') }}"
    (folder / "chat_template.jinja").write_text(run)
    load_tokenizer.cache_clear()
    seen = check(model=str(folder), engine_args={"load_format": "dummy"})["chat template"]
    assert seen.status != "ok"
    assert "access to attribute" in seen.seen
