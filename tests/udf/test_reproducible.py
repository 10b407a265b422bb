"""``reproducible=True``: the same bytes whatever the batch, and an error where that can't be had."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from typing import Any, Literal

import daft
import pytest
from daft import col

from daft_vllm import EngineConfig, OfflineEngine, Provider, Request, check, prompt
from daft_vllm.engine.process import core
from daft_vllm.engine.process.step_watch import StepWatch
from daft_vllm.engine.requests.sampling import SamplingOptions
from daft_vllm.engine.setup.devices.driver import GpuState
from daft_vllm.engine.setup.environment import core_environment, start_args
from daft_vllm.engine.setup.guardian import NewProcesses
from daft_vllm.engine.setup.reproducible import CPU_CORE_VARIABLES
from daft_vllm.errors import DeviceError, ModelError, OptionError
from daft_vllm.model_configs import config_of
from daft_vllm.udf.answers.return_format import ReturnFormat
from daft_vllm.udf.options import PromptOptions
from daft_vllm.udf.planning.plan import spec_of
from daft_vllm.udf.preflight import load
from daft_vllm.udf.preflight.reproducible import reproducible_problem

GIB = 2**30
ROOM: dict[str, Any] = {"max_model_len": 1024, "kv_cache_memory_bytes": GIB}
TIGHT = {"kv_cache_memory_bytes": 28 << 20, "max_model_len": 512}
"""Room for 600 tokens of SmolLM2-135M in float32: 9 of the rows below are preempted."""


def planned(parts: tuple[Any, ...] = ("auto",), **options: Any) -> Any:
    return spec_of(PromptOptions.of({"reproducible": True, **options}), parts, use_process=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.7}, "needs a seed where the temperature is above 0: pass seed=0"),
        ({"temperature": col("t")}, "needs a seed where the temperature is above 0"),
        ({"model": "qwen3-8b", "recommended_sampling": True, "thinking": False}, "needs a seed"),
        ({"engine_args": {"dtype": "bfloat16"}, "gpus": 0}, "in float32 on a CPU.*leave dtype out"),
        ({"engine_args": {"kv_cache_dtype": "fp8"}, "gpus": 0}, "kv_cache_dtype='fp8' on a CPU"),
        ({"engine_args": {"quantization": "fp8"}, "gpus": 0}, "quantization on a CPU"),
        ({"engine_args": {"enforce_eager": False}, "gpus": 0}, "enforce_eager=False on a CPU"),
        ({"engine_args": {"tensor_parallel_size": 3}, "gpus": 0}, "several processes on a CPU"),
        ({"adapters": {"a": "someone/lora"}, "gpus": 0}, "adapters on a CPU"),
        ({"engine_args": {"speculative_config": {"method": "ngram"}}, "gpus": 1}, "speculative_config"),
        ({"engine_args": {"data_parallel_size": 2}, "gpus": 1}, "data_parallel_size=2"),
        (
            {"engine_args": {"attention_backend": "FLASHINFER"}, "gpus": 1},
            "the attention backend FLASHINFER: .*FLASH_ATTN",
        ),
        (
            {"engine_args": {"attention_config": {"backend": "flashinfer"}}, "gpus": 1},
            "the attention backend FLASHINFER",
        ),
        ({"reproducible": "yes"}, "reproducible is"),
    ],
)
def test_options_with_which_it_can_not_be_had(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        planned(**options)


@pytest.mark.parametrize(
    ("model", "args", "gpus", "message"),
    [
        ("gpt-oss-20b", {}, 1, "has kernels for FP8 and AWQ weights, and none for mxfp4"),
        ("qwen3-30b-a3b", {}, 0, "on a CPU the kernels for experts"),
        ("qwen3-8b", {"quantization": "bitsandbytes"}, 1, "none for bitsandbytes"),
    ],
)
def test_models_with_which_it_can_not_be_had(model: str, args: dict[str, Any], gpus: int, message: str) -> None:
    with pytest.raises(ModelError, match=f"reproducible=True can't be had with .*{message}.*Use another model"):
        planned(model=model, engine_args=args, gpus=gpus)


def test_what_the_config_says_of_a_model() -> None:
    base = config_of("qwen3-8b")
    assert base is not None
    assert reproducible_problem(base, {}, 1) is None
    assert reproducible_problem(base, {"quantization": "fp8"}, 1) is None
    for changed, gpus, message in (
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, 1, "none for gptq"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, 0, "on a CPU the kernels for awq weights"),
        ({"layer_types": ["linear_attention", "full_attention"]}, 1, "linear attention or Mamba"),
        ({"mamba_d_state": 128}, 1, "linear attention or Mamba"),
        ({"kv_lora_rank": 512}, 0, "MLA"),
        ({"model_type": "gemma4"}, 0, "only, and this is gemma4"),
        ({"index_topk": 2048}, 1, "sparse attention"),
        ({"hidden_size": 4100}, 2, "4100, is no multiple of 8"),
        ({"num_experts": 8, "quantization_config": {"quant_method": "awq", "bits": 4}}, 1, "experts with AWQ"),
    ):
        config = replace(base, config={**base.config, **changed})
        assert message in str(reproducible_problem(config, {}, gpus, complete=False)), changed


def test_media_are_refused() -> None:
    with pytest.raises(OptionError, match="is for text, and the prompt has image: leave one out"):
        planned(("auto", "image"), model="qwen3-vl-8b", gpus=1)


def test_a_card_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    config = EngineConfig("qwen3-8b", {"max_model_len": 4096}, gpus=1, reproducible=True)
    for name, capability in (("NVIDIA A100-SXM4-80GB", (8, 0)), ("Tesla V100-SXM2-32GB", (7, 0))):
        state = GpuState("0", name, 80 * GIB, 79 * GIB, capability, "570.1")
        monkeypatch.setattr(load, "gpu_states", lambda ids, state=state: [state])
        if capability >= (8, 0):
            load.check_fits(config)
            continue
        with pytest.raises(DeviceError, match=r"compute capability 8\.0 or more.*a Tesla V100-SXM2-32GB has 7.0"):
            load.check_fits(config)
        load.check_fits(replace(config, reproducible=False))


def test_check_knows_it_for_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    report = check(model="qwen3-0.6b", gpu="t4", reproducible=True)
    assert report["reproducible"].status == "failure"
    assert "compute capability 8.0" in report["reproducible"].seen
    assert check(model="qwen3-0.6b", gpu="l4", reproducible=True)["reproducible"].status == "ok"
    assert "reproducible" not in {one.name for one in check(model="qwen3-0.6b", gpu="t4").checks}


def test_it_tells_engines_apart_and_gets_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, ours = EngineConfig("m"), EngineConfig("m", reproducible=True)
    assert repr(plain) != repr(ours)  # the key in udf/worker/engines.py
    assert start_args(ours)["dtype"] == "float32"
    assert start_args(ours)["distributed_executor_backend"] != start_args(plain)["distributed_executor_backend"]
    monkeypatch.setenv("VLLM_CPU_ATTN_SPLIT_KV", "1")
    with core_environment(cpu=True, reproducible=True):
        assert (os.environ["VLLM_CPU_ATTN_SPLIT_KV"], os.environ["ATEN_CPU_CAPABILITY"]) == ("0", "default")
    assert os.environ["VLLM_CPU_ATTN_SPLIT_KV"] == "1"
    assert "ATEN_CPU_CAPABILITY" not in os.environ
    assert Provider(reproducible=True).get_prompter().spec.engine.reproducible  # type: ignore[attr-defined]


@pytest.mark.parametrize(("reproducible", "expected"), [(True, "1"), (False, None)])
def test_vllms_processes_on_gpus_get_the_mode_and_nothing_stays(
    monkeypatch: pytest.MonkeyPatch, reproducible: bool, expected: str | None
) -> None:
    """The start stops where vLLM's first process would be started."""

    def first_process(*_: Any, **__: Any) -> None:
        seen.append(os.environ.get("VLLM_BATCH_INVARIANT"))
        os.environ["VLLM_USE_BREAKABLE_CUDAGRAPH"] = "1"  # as vLLM does, for some models
        raise InterruptedError

    seen: list[str | None] = []
    monkeypatch.delenv("VLLM_BATCH_INVARIANT", raising=False)
    monkeypatch.setattr(core, "check_build", lambda gpus: None)
    monkeypatch.setattr(core, "start_core_early", first_process)
    with pytest.raises(InterruptedError):
        core.Core.start(EngineConfig("m", gpus=1, reproducible=reproducible), StepWatch(), NewProcesses())
    assert seen == [expected]
    assert not {"VLLM_BATCH_INVARIANT", "VLLM_USE_BREAKABLE_CUDAGRAPH"} & os.environ.keys()


NAMES = ("Ada", "Ben", "Chloé", "Dmitri", "Emma", "Farid", "Greta", "Hiro", "Ines", "Jonas")
ASKED = (
    "Tell {} a joke.",
    "Write a poem for {}.",
    "What would {} eat? {} " + "Why? " * 40,
    "List things that {} could buy.",
)
STORY = "Once upon a time a fox lived at the edge of a wood, and every evening it walked to the river. " * 8
FORMATS: tuple[Any, ...] = (
    None,
    None,
    Literal["yes", "no", "perhaps"],
    {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]},
)


def rows() -> list[Request]:
    """60 rows: short and long prompts, some with a common beginning; guided and free; greedy and drawn."""
    constraints = [next(iter(ReturnFormat.of(form).constraints), None) for form in FORMATS]
    made = []
    for i in range(60):
        text = ASKED[i % 4].format(NAMES[i % 10], NAMES[i // 6])
        drawn = {"temperature": 1.0, "seed": 7, "top_p": 0.95 if i % 4 else 1.0} if i % 2 else {}
        sampling = SamplingOptions.of({"max_tokens": 40 if i % 4 == 1 else 10, **drawn})
        text = f"{STORY if i % 5 == 0 else ''}{text} ({i})"
        made.append(Request(text, sampling=sampling, own_seed=True, constraint=constraints[i // 2 % 4]))
    return made


def answers(engine: OfflineEngine, order: list[int], *, alone: bool = False) -> dict[int, str]:
    requests = rows()
    if alone:
        outcomes = [engine.run([requests[i]], dedupe=False)[0] for i in order]
    else:
        outcomes = engine.run([requests[i] for i in order], dedupe=False)
    assert {outcome.error.code for outcome in outcomes if outcome.error is not None} <= {"truncated"}
    return {i: f"{outcome.text}|{outcome.finish_reason}" for i, outcome in zip(order, outcomes, strict=True)}


@pytest.mark.slow
@pytest.mark.other_engine
def test_60_rows_have_the_same_bytes_in_every_batch_and_engine(smollm2: str) -> None:
    """The last engine's cache is so small that rows are preempted, computed again, and go on drawing."""
    shuffled = random.Random(0).sample(range(60), 60)
    engines: list[tuple[dict[str, Any], list[int]]] = [
        ({"max_num_seqs": 1}, list(range(60))),
        ({"max_num_seqs": 64, "max_num_batched_tokens": 2048}, list(range(60))),
        (
            {"max_num_seqs": 40, "max_num_batched_tokens": 93, "enable_prefix_caching": False, **TIGHT},
            shuffled,
        ),
    ]
    found = []
    for args, order in engines:
        config = EngineConfig(smollm2, {**ROOM, **args}, reproducible=True)
        with OfflineEngine(config) as engine:
            found.append(answers(engine, order))
            if args["max_num_seqs"] == 64:  # with the prefixes of all rows in the cache, and without neighbours
                assert answers(engine, shuffled[:12], alone=True).items() <= found[0].items()
                assert answers(engine, shuffled) == found[0]
    assert found[1] == found[0]
    assert found[2] == found[0]
    assert len(set(found[0].values())) > 30, "the rows are no test if they all say the same"


LOGPROBS = """
import json, os, sys
model, ours = sys.argv[1], sys.argv[2] == "ours"
import daft_vllm.engine.setup.environment as environment
environment.prepare_environment(cpu=True)
from vllm import LLM, SamplingParams
executor = "ReproducibleExecutor" if ours else "InCoreExecutor"
llm = LLM(
    model, dtype="float32", enforce_eager=True, max_model_len=2048, block_size=32, kv_cache_memory_bytes=1 << 30,
    max_num_seqs=16, max_num_batched_tokens=100,
    distributed_executor_backend=f"daft_vllm.engine.patches.executor.{executor}",
)
prompts = [{"prompt_token_ids": [1, *range(500, 500 + 7 * i), *range(900, 900 + 3 * i * i)]} for i in range(1, 9)]
params = [SamplingParams(temperature=i % 2, seed=i, max_tokens=4, logprobs=4, ignore_eos=True) for i in range(8)]
def numbers(steps):
    return [sorted((token, one.logprob.hex()) for token, one in step.items()) for step in steps]
def found(outputs):
    return [numbers(one.outputs[0].logprobs) for one in outputs]
alone = [found(llm.generate([prompt], one, use_tqdm=False))[0] for prompt, one in zip(prompts, params)]
llm.reset_prefix_cache()
together = found(llm.generate(prompts, params, use_tqdm=False))
print(json.dumps([i for i in range(8) if alone[i] != together[i]]))
"""


@pytest.mark.parametrize("kind", ["ours", pytest.param("vllm", marks=pytest.mark.slow)])
def test_log_probabilities_have_the_same_bits(smollm2: str, kind: str) -> None:
    """Without the option, in float32 too, the numbers of most rows depend on their neighbours."""
    environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCH_COMPILE_DISABLE": "1"}
    environment |= CPU_CORE_VARIABLES if kind == "ours" else {}
    command = [sys.executable, "-c", LOGPROBS, smollm2, kind]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    differing = json.loads(done.stdout.strip().splitlines()[-1])
    if kind == "ours":
        assert differing == []
    else:
        assert len(differing) > 3


@pytest.mark.other_engine
def test_a_row_that_draws_without_a_seed_is_an_error(smollm2: str) -> None:
    config = EngineConfig(smollm2, {**ROOM, "max_num_seqs": 64, "max_num_batched_tokens": 2048}, reproducible=True)
    df = daft.from_pydict({"q": ["Hi!", "Hi!", "Hi!", "Hi!"], "t": [0.0, 0.0, 1.0, 1.0], "s": [None, 1, None, 1]})
    options: dict[str, Any] = {"model": smollm2, "engine_args": dict(config.engine_args), "gpus": 0, "details": True}
    options |= {"temperature": col("t"), "seed": col("s"), "max_tokens": 8, "reproducible": True}
    found = df.select(prompt(col("q"), use_process=False, **options).alias("a")).to_pydict()["a"]
    assert found[2]["error"].startswith("invalid_request: reproducible=True needs a seed")
    assert [bool(one["text"]) for one in found] == [True, True, False, True]
    assert found[0]["text"] == found[1]["text"]
