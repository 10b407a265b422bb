"""Folders and names of models that can't run: one sentence each that helps, from ``check`` and before a load."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from daft_vllm import check
from daft_vllm.engine import EngineConfig
from daft_vllm.engine.setup.environment import start_args
from daft_vllm.engine.setup.preflight import check_before_load
from daft_vllm.errors import ModelError, OptionError
from daft_vllm.model_configs import check_known_model, config_of, known_models, resolve_model
from daft_vllm.model_configs.siblings import as_quantized
from daft_vllm.udf.check import CheckReport
from daft_vllm.udf.options import PromptOptions
from daft_vllm.udf.planning.plan import spec_of
from daft_vllm.udf.preflight.architecture import check_card_type
from daft_vllm.udf.preflight.files import suggest_model
from daft_vllm.udf.preflight.model import Model
from tests.helpers import replace_file

DUMMY = {"load_format": "dummy"}


pytestmark = pytest.mark.usefixtures("offline")


def failed(report: CheckReport, name: str) -> str:
    assert report[name].status == "failure", report
    assert not report.ok
    return report[name].seen


def changed(path: Path, **values: Any) -> None:
    replace_file(path, json.dumps({**json.loads(path.read_text()), **values}).encode())


def half(path: Path) -> None:
    whole = path.read_bytes()
    replace_file(path, whole[: len(whole) // 2])


def padded(path: Path) -> None:
    replace_file(path, path.read_bytes() + bytes(8))


def pointer(path: Path) -> None:
    replace_file(path, b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 269060552\n")


WEIGHTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "cut in half": (half, "model.safetensors is cut off: it has 1.* bytes, and its header says 2"),
    "longer than it should be": (padded, "model.safetensors is cut off"),
    "empty": (lambda path: replace_file(path, b""), "model.safetensors is empty"),
    "a few bytes": (lambda path: replace_file(path, b"\0" * 5), "is cut off, or no safetensors file"),
    "a page of HTML": (lambda path: replace_file(path, b"<!DOCTYPE html>" * 99), "is cut off, or no safetensors file"),
    "a pointer": (pointer, "pointer of Git LFS, not the file itself: run 'git lfs pull'"),
}


@pytest.mark.parametrize("fault", WEIGHTS)
def test_weights(fault: str, model: Path) -> None:
    spoil, said = WEIGHTS[fault]
    spoil(model / "model.safetensors")
    seen = failed(check(model=str(model), gpus=0), "model")
    with pytest.raises(ModelError, match=said) as e:
        check_before_load(EngineConfig(str(model)), (), {})
    assert str(e.value) == seen
    check_before_load(EngineConfig(str(model), DUMMY), (), {})


def test_a_tensor_that_the_index_names(model: Path) -> None:
    index = {"weight_map": {"model.norm.weight": "model.safetensors", "lost.weight": "model.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "lacks lost.weight" in failed(check(model=str(model), gpus=0), "model")
    (model / "model.safetensors.index.json").write_text('{"weight_map": {')
    assert "model.safetensors.index.json is cut off or damaged" in failed(check(model=str(model), gpus=0), "model")


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "config.json"])
@pytest.mark.parametrize("spoil", [half, pointer])
def test_a_settings_file_that_is_cut_off(name: str, spoil: Callable[[Path], None], model: Path) -> None:
    spoil(model / name)
    assert name in failed(check(model=str(model), gpus=0), "model")
    with pytest.raises(ModelError, match=name):
        check_before_load(EngineConfig(str(model), DUMMY), (), {})


def test_a_tokenizer_that_can_not_be_loaded(model: Path) -> None:
    changed(model / "tokenizer.json", model={"type": "BPE of tomorrow"})
    seen = failed(check(model=str(model), gpus=0), "tokenizer")
    assert "can't be loaded" in seen
    assert "download its files again" in seen


def test_a_folder_without_a_tokenizer(model: Path, smollm2: str) -> None:
    for path in [*model.glob("tokenizer*"), *model.glob("vocab*"), *model.glob("merges*")]:
        path.unlink()
    assert "has no tokenizer: copy tokenizer.json" in failed(check(model=str(model), gpus=0), "model")
    with pytest.raises(ModelError, match="has no tokenizer"):
        check_before_load(EngineConfig(str(model), DUMMY), (), {})
    assert check(model=str(model), gpus=0, engine_args={"tokenizer": smollm2}).ok


def test_the_config_of_another_model(model: Path, tmp_path: Path) -> None:
    settings = json.loads((model / "config.json").read_text())
    changed(model / "config.json", architectures=["GPT2LMHeadModel"])
    assert "contradicts itself" in failed(check(model=str(model), gpus=0), "architecture")
    gpt2 = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 2}
    replace_file(model / "config.json", json.dumps({**gpt2, "vocab_size": settings["vocab_size"]}).encode())
    seen = failed(check(model=str(model), gpus=0), "architecture")
    assert "config.json describes GPT2LMHeadModel, with layers such as c_attn" in seen
    assert "take the config.json that belongs to the weights" in seen
    replace_file(model / "config.json", json.dumps({**settings, "hidden_size": 1152, "head_dim": 64}).encode())
    assert "is 49152 x 576 there, and 49152 x 1152" in failed(check(model=str(model), gpus=0), "architecture")
    replace_file(model / "config.json", json.dumps(settings).encode())
    assert check(model=str(model), gpus=0).ok


def test_a_kv_cache_larger_than_the_memory(smollm2: str, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory._replace(available=20 << 30))
    seen = failed(check(model=smollm2, gpus=0, engine_args={"kv_cache_memory_bytes": 100 << 30}), "memory")
    assert "the KV cache takes 100.0 GiB (kv_cache_memory_bytes)" in seen
    assert "20.0 GiB of memory are free: lower kv_cache_memory_bytes" in seen
    seen = failed(check(model="qwen3-8b", gpu="L4", engine_args={"kv_cache_memory_bytes": 100 << 30}), "memory")
    assert "100.0 GiB, and a L4 has" in seen
    small = {"kv_cache_memory_bytes": 1 << 20, "max_model_len": 8192}
    assert "8192 takes" in failed(check(model=smollm2, gpus=0, engine_args=small), "memory")
    assert check(model=smollm2, gpus=0, engine_args={"kv_cache_memory_bytes": 1 << 30}).ok
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "100")
    assert "lower VLLM_CPU_KVCACHE_SPACE" in failed(check(model=smollm2, gpus=0), "memory")


def test_a_context_that_the_model_does_not_have() -> None:
    seen = failed(check(model="qwen3-8b", gpu="H100", engine_args={"max_model_len": 200_000}), "memory")
    assert "max_model_len=200000 is more than the model's context" in seen


def test_models_that_write_nothing(model: Path, tiny: str, tmp_path: Path) -> None:
    seen = failed(check(model="qwen3-embedding-0.6b", gpu="L4"), "architecture")
    assert "makes embeddings or classes and writes no text" in seen
    with pytest.raises(ModelError, match="writes no text"):
        spec_of(PromptOptions(model="Qwen/Qwen3-Embedding-0.6B", gpus=0), ["auto"], use_process=True)
    (model / "modules.json").write_text("[]")  # sentence-transformers
    assert "writes no text" in failed(check(model=str(model), gpus=0), "architecture")
    bert = tmp_path / "bert"
    shutil.copytree(tiny, bert)
    for name in ("BertModel", "BertForMaskedLM", "BertForSequenceClassification", "XLMRobertaModel"):
        kind = {"model_type": "bert" if "Bert" in name else "xlm-roberta", "architectures": [name]}
        sizes = {"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 64}
        (bert / "config.json").write_text(json.dumps({**kind, **sizes}))
        assert "writes no text" in failed(check(model=str(bert), gpus=0, engine_args=DUMMY), "architecture")


def test_folders_that_are_no_model(tmp_path: Path) -> None:
    adapter = {"r": 8, "peft_type": "LORA", "base_model_name_or_path": "Qwen/Qwen3-8B"}
    lora = tmp_path / "lora"
    lora.mkdir()
    (lora / "adapter_config.json").write_text(json.dumps(adapter))
    (lora / "adapter_model.safetensors").touch()
    gguf = tmp_path / "gguf"
    gguf.mkdir()
    (gguf / "model-q4.gguf").touch()
    cached = tmp_path / "models--owner--name"
    (cached / "snapshots" / "0").mkdir(parents=True)
    (cached / "snapshots" / "0" / "config.json").write_text("{}")
    mistral = tmp_path / "mistral"
    mistral.mkdir()
    (mistral / "params.json").write_text("{}")
    for place, said in {
        lora: "is a LoRA adapter, not a model: pass its base model, model='Qwen/Qwen3-8B', and adapters=",
        gguf: "it has a GGUF file. vLLM reads safetensors",
        gguf / "model-q4.gguf": "is a GGUF file. vLLM reads safetensors",
        tmp_path / "nowhere.gguf": "is a GGUF file",
        lora / "adapter_model.safetensors": "pass its folder",
        cached: "snapshots/0'",
        mistral: "Mistral's own format",
        tmp_path: "not a model in Hugging Face format",
    }.items():
        assert said in failed(check(model=str(place), gpus=0), "model")
        with pytest.raises(ModelError) as e:
            spec_of(PromptOptions(model=str(place), gpus=0), ["auto"], use_process=True)
        assert said in str(e.value)


def test_names_in_any_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = known_models()["qwen3-8b"]
    for name in ("qwen3-8b", "Qwen3-8B", "QWEN3-8B", "Qwen/Qwen3-8B", "qwen/qwen3-8b"):
        check_known_model(name)
        assert config_of(name) is known
        assert resolve_model(name) == "Qwen/Qwen3-8B"
    assert resolve_model("SmolLM2-135M") == resolve_model("smollm2-135m")
    with pytest.raises(OptionError, match="Did you mean 'qwen3-8b'"):
        check_known_model("Qwen3-8bb")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Qwen3-8B").mkdir()
    assert config_of("Qwen3-8B") is None  # the folder
    assert resolve_model("Qwen3-8B") == "Qwen3-8B"
    assert config_of("qwen3-8b") is known


@pytest.mark.parametrize(
    "ending", ["AWQ", "GPTQ-Int4", "FP8", "bnb-4bit", "GGUF", "NVFP4", "quantized.w4a16", "MLX-8bit"]
)
def test_names_of_quantized_models_are_no_typing_errors(ending: str) -> None:
    seen = failed(check(model=f"Qwen/Qwen3-8B-{ending}", gpu="L4"), "model")
    assert "Did you mean" not in seen
    assert "run 'hf download" in seen
    assert "daft-vllm describes qwen3-8b" in seen
    assert "Did you mean 'Qwen/Qwen3-8B'?" in suggest_model("Qwen/Qwen3-8bb")


def test_quantizations_that_vllm_refuses(model: Path) -> None:
    for args, said in (
        ({"quantization": "awq"}, "is for weights that are quantized in their files"),
        ({"quantization": "fp9"}, "vLLM has no quantization 'fp9'. Did you mean 'fp8'"),
        ({"quantization": "fp8"}, 'let vLLM quantize them: engine_args={"quantization": "fp8_per_tensor"}'),
    ):
        assert said in failed(check(model="qwen3-8b", gpu="L4", engine_args=args), "architecture")
    for name in ("fp8_per_tensor", "fp8_per_block"):
        assert check(model="qwen3-8b", gpu="L4", engine_args={"quantization": name})["architecture"].status == "ok"
    changed(model / "config.json", quantization_config={"quant_method": "awq", "bits": 4, "group_size": 128})
    asked = {"quantization": "fp8", **DUMMY}
    assert "quantized with 'awq'" in failed(check(model=str(model), gpus=0, engine_args=asked), "architecture")
    assert check(model=str(model), gpus=0, engine_args={"quantization": "awq_marlin", **DUMMY}).ok
    changed(model / "config.json", quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})
    assert "no quantization 'bitsandbytes'" in failed(
        check(model=str(model), gpus=0, engine_args=DUMMY), "architecture"
    )


def test_8_bit_integers_on_a_card_without_kernels_for_them() -> None:
    config = as_quantized(known_models()["qwen3-8b"], "int8")
    model = Model("qwen3-8b")
    model.config = config
    check_card_type(model, "NVIDIA H100", (9, 0))
    with pytest.raises(ModelError, match=r"multiplies 8-bit integers up to 9.x only: use a model with FP8 weights"):
        check_card_type(model, "NVIDIA B200", (10, 0))


def test_bfloat16_on_a_card_that_has_none() -> None:
    assert "has no bfloat16" in failed(check(model="gemma-3-4b", gpu="T4"), "memory")
    assert check(model="qwen2.5-0.5b", gpu="T4")["memory"].status == "ok"
    assert "no bfloat16" in failed(check(model="qwen2.5-0.5b", gpu="T4", engine_args={"dtype": "bfloat16"}), "memory")


def test_kernels_that_a_card_has_not() -> None:
    """vLLM refuses it after the download."""
    report = check(model="gpt-oss-20b", gpu="T4", gpus=2)
    assert "compute capability 7.5, and vLLM's kernels for mxfp4 weights need 8.0" in failed(report, "memory")
    assert check(model="gpt-oss-20b", gpu="A10G")["memory"].status == "ok"
    assert "mxfp4 weights need 8.0" in failed(
        check(model="qwen2.5-0.5b", gpu="T4", engine_args={"quantization": "mxfp4"}), "memory"
    )


def test_a_model_of_which_a_number_is_missing(model: Path) -> None:
    """No traceback: what can't be estimated is said."""
    settings = {"architectures": ["MambaForCausalLM"], "model_type": "mamba", "hidden_size": 64, "num_hidden_layers": 2}
    replace_file(model / "config.json", json.dumps(settings).encode())
    for where in ({"gpus": 0}, {"gpu": "L4"}):
        report = check(model=str(model), engine_args=DUMMY, **where)
        assert report["memory"].status == "warning"
        assert "not" in report["memory"].seen


def test_mistrals_own_tokenizer(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hugging Face's files are chosen where they are there; else ``tekken.json`` is converted and guarded."""
    import mistral_common
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    from daft_vllm.engine.setup.preflight import load_tokenizer
    from daft_vllm.engine.text.guard import TokenGuard

    monkeypatch.setenv("DAFT_VLLM_CACHE", str(tmp_path / "cache"))
    tekken = Path(mistral_common.__file__).parent / "data" / "tekken_240911.json"
    shutil.copy(tekken, model / "tekken.json")
    (model / "consolidated.safetensors").touch()
    report = check(model=str(model), gpus=0)
    assert report.ok, report
    assert "tekken.json beside it is not used" in report["tokenizer"].seen
    assert start_args(EngineConfig(str(model)))["tokenizer_mode"] == "hf"
    assert "tokenizer" not in start_args(EngineConfig(str(model)))
    assert start_args(EngineConfig(str(model), {"tokenizer_mode": "auto"}))["tokenizer_mode"] == "auto"
    (model / "tokenizer.json").unlink()
    load_tokenizer.cache_clear()
    assert "from tekken.json, converted" in check(model=str(model), gpus=0)["tokenizer"].seen
    tokenizer = load_tokenizer(start_args(EngineConfig(str(model)))["tokenizer"])
    own = MistralTokenizer.from_file(str(tekken)).instruct_tokenizer.tokenizer
    for text in ("It's 12345 o'clock", "The QUICK brownFox\n\n  wörld 漢字", "[INST] is a name [/INST]</s>"):
        plain = tokenizer(text, add_special_tokens=False)["input_ids"]
        guard = TokenGuard(tokenizer, tokenizer.chat_template)
        (guarded,) = guard.tokenize([guard.hide_markers(text)])
        assert tokenizer.decode(guarded) == tokenizer.decode(own.encode(text, False, False)) == text
        assert not set(guarded) & set(range(own.num_special_tokens))
        if "[" not in text:
            assert plain == guarded == own.encode(text, False, False)
    (model / "tekken.json").write_text('{"vocab": [')
    assert "tekken.json is cut off" in failed(check(model=str(model), gpus=0), "model")
