"""What the makers of models recommend, and when models think: stated in every file, and used by ``prompt()``."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import daft
import pytest
from daft import col
from pydantic import BaseModel
from typer.testing import CliRunner

from daft_vllm import Request, check, prompt
from daft_vllm.cli import app
from daft_vllm.engine.requests.outcome import Outcome
from daft_vllm.engine.requests.prepared import unpack_tokens
from daft_vllm.engine.requests.sampling import SamplingOptions
from daft_vllm.errors import OptionError
from daft_vllm.model_configs import ModelConfig, known_models, registry
from daft_vllm.udf.worker.spec import PromptSpec

GENERATING = [name for name, config in known_models().items() if config.task == "generate"]
MODELS = Path(registry.__file__).parent / "models"


class City(BaseModel):
    city: str


def weather(city: str) -> str:
    """Tell the weather."""
    return city


def planned(monkeypatch: pytest.MonkeyPatch, *form: Any, **options: Any) -> PromptSpec:
    """Return what a worker would get for this call of ``prompt()``."""
    made: list[PromptSpec] = []

    def note(spec: PromptSpec, *columns: Any, **more: Any) -> daft.Expression:
        made.append(spec)
        return col("q")

    monkeypatch.setattr("daft_vllm.udf.prompt.actor_expression", note)
    prompt(col("q"), *form, gpus=0, use_process=True, **options)
    return made[0]


@pytest.mark.parametrize("name", GENERATING)
def test_every_mode_has_numbers_that_vllm_takes_or_none_and_a_source(name: str) -> None:
    from vllm import SamplingParams

    config = known_models()[name]
    assert config.sampling is not None
    assert set(config.sampling.modes) == set(config.prompting.modes)
    for numbers in filter(None, config.sampling.modes.values()):
        assert SamplingOptions.of(dict(numbers))
        params = SamplingParams(**numbers)
        if numbers["temperature"]:  # else vLLM resets the others
            assert {option: getattr(params, option) for option in numbers} == dict(numbers)
    said = " ".join(config.sampling.source)
    assert ("none" in said) == (None in config.sampling.modes.values())
    assert config.hub_name.split("/")[0] in said or "README.md" in said or "//ai.google.dev" in said or "none" in said


def test_nearly_all_have_numbers_and_others_say_why() -> None:
    without = {name for name in GENERATING if None in known_models()[name].sampling.modes.values()}  # type: ignore[union-attr]
    assert len(without) < len(GENERATING) / 6, without
    embedding = [config for config in known_models().values() if config.task == "embed"]
    assert embedding
    assert all(config.sampling is None for config in embedding)


RIGHT = (MODELS / "qwen3" / "qwen3-8b.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("not_thinking = ", "# ", r"has thinking, and the model has not_thinking, thinking"),
        ("not_thinking = ", "no_thinking = ", r"has no_thinking, thinking"),
        ('thinking = "switch"\nthinks_by_default = true', 'thinking = "always"', r"the model has thinking"),
        ('thinking = "switch"\nthinks_by_default = true', 'thinking = "sometimes"', r"got 'sometimes'"),
        ("thinks_by_default = true\n", "", r"thinks_by_default is true or false"),
        ("thinks_by_default = true", 'thinks_by_default = "true"', r"thinks_by_default is true or false"),
        ('thinking = "switch"\n', 'thinking = "never"\n', r"not given otherwise"),
        ('thinking = "switch"\nthinks_by_default = true', "no_thinking_text = 'x'", r'need thinking = "switch"'),
        ("temperature = 0.6, ", "", r"thinking needs a temperature"),
        ("top_k = 20", "max_tokens = 20", r"thinking has 'max_tokens'\. It takes temperature"),
        ("top_k = 20", 'top_k = "20"', r"needs a number for top_k, got '20'"),
        ("top_k = 20", "top_k = true", r"needs a number for top_k, got True"),
        ("source = [", "sources = [", r"needs source = "),
        ("[sampling]", "[sampled]", r"has no mode"),
    ],
)
def test_a_file_that_says_something_else_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in RIGHT
    path = tmp_path / "qwen3-8b.toml"
    path.write_text(RIGHT, encoding="utf-8")
    assert ModelConfig.load(path) == known_models()["qwen3-8b"]
    path.write_text(RIGHT.replace(old, new), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        ModelConfig.load(path)


@pytest.mark.parametrize(
    ("model", "form", "options", "mode"),
    [
        ("qwen3-8b", [City], {}, "not_thinking"),
        ("Qwen/Qwen3-8B", [City], {}, "not_thinking"),
        ("qwen3-8b", [["yes", "no"]], {}, "not_thinking"),
        ("qwen3-8b", [], {"tools": [weather]}, "not_thinking"),
        ("qwen3-8b", [City], {"thinking": True}, "thinking"),
        ("qwen3-8b", [], {}, "thinking"),
        ("qwen3-8b", [str], {"thinking": False}, "not_thinking"),
        ("qwen3-8b", [], {"chat_template_kwargs": {"enable_thinking": False}}, "not_thinking"),
        ("qwen3-8b", [], {"apply_chat_template": False, "thinking": False}, "not_thinking"),
        ("qwen3.6-27b", [City], {}, "not_thinking"),
        ("exaone-4.0-32b", [], {}, "not_thinking"),
        ("exaone-4.0-32b", [], {"thinking": True}, "thinking"),
        ("exaone-4.0-32b", [], {"chat_template_kwargs": {"enable_thinking": True}}, "thinking"),
        ("seed-oss-36b", [], {"chat_template_kwargs": {"thinking_budget": 0}}, "not_thinking"),
        ("seed-oss-36b", [], {"chat_template_kwargs": {"thinking_budget": 512}}, "thinking"),
        ("gpt-oss-20b", [City], {}, "thinking"),  # it has no other mode
        ("qwen3-4b-2507", [], {}, "not_thinking"),
    ],
)
def test_a_job_gets_the_numbers_of_its_mode(
    monkeypatch: pytest.MonkeyPatch, model: str, form: list[Any], options: dict[str, Any], mode: str
) -> None:
    config = registry.config_of(model)
    assert config is not None
    # Numbers of its own for each mode, since some makers recommend the same for both.
    marked = {one: {"temperature": 0.25 + 0.5 * (one == "thinking")} for one in config.prompting.modes}
    assert config.sampling is not None
    changed = dataclasses.replace(config, sampling=dataclasses.replace(config.sampling, modes=marked))
    for sampling in (config.sampling, changed.sampling):
        assert sampling is not None
        one = dataclasses.replace(config, sampling=sampling)
        monkeypatch.setattr("daft_vllm.udf.planning.engine.config_of", lambda name, one=one: one)
        got = planned(monkeypatch, *form, model=model, recommended_sampling=True, **options).sampling
        assert got.model_dump(exclude_unset=True) == sampling.modes[mode]  # type: ignore[index]
    assert planned(monkeypatch, *form, model=model, **options).sampling == SamplingOptions()


def test_qwen3_with_a_format_has_the_numbers_for_answers_without_thinking(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = planned(monkeypatch, City, model="qwen3-8b", recommended_sampling=True)
    assert spec.thinking is False
    assert spec.sampling == SamplingOptions(temperature=0.7, top_p=0.8, top_k=20, min_p=0.0)
    spec = planned(monkeypatch, City, model="qwen3-8b", recommended_sampling=True, thinking=True)
    assert spec.sampling == SamplingOptions(temperature=0.6, top_p=0.95, top_k=20, min_p=0.0)


def test_what_is_given_goes_before_what_is_recommended(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = planned(
        monkeypatch, City, model="qwen3-8b", recommended_sampling=True, temperature=0.0, top_p=col("p"), max_tokens=9
    )
    assert spec.sampling == SamplingOptions(temperature=0.0, top_p=0.8, top_k=20, min_p=0.0, max_tokens=9)
    assert spec.row_options == ("top_p",)  # a row without a value has the recommended one


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"model": "glm-4.5-air"},
            r"makers of zai-org/GLM-4.5-Air recommend no sampling options for answers with th",
        ),
        ({"model": "phi-4"}, r"makers of microsoft/phi-4 recommend no sampling options\. Pass temperature"),
        ({"model": "owner/other"}, r"doesn't know what the makers of 'owner/other' recommend"),
        ({"model": "qwen3-8b", "apply_chat_template": False}, r"Pass thinking=True or thinking=False"),
        ({"model": "qwen3-8b", "chat_template": "{{ x }}"}, r"Pass thinking=True or thinking=False"),
        ({"model": "qwen3-8b", "recommended_sampling": "yes"}, r"recommended_sampling is True or False, got 'yes'"),
    ],
)
def test_nothing_is_guessed(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        prompt(col("q"), gpus=0, use_process=True, **{"recommended_sampling": True, **options})


def test_check_says_so_too(tiny: str) -> None:
    seen = check(model=tiny, engine_args={"load_format": "dummy"}, recommended_sampling=True)["options"]
    assert (seen.status, "doesn't know what the makers" in seen.seen) == ("failure", True)
    assert check(recommended_sampling=True)["options"].status == "ok"


def test_seed_oss_does_not_think_where_it_shall_not(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = planned(monkeypatch, City, model="seed-oss-36b")
    assert spec.chat_template_kwargs == {"thinking_budget": 0}
    assert spec.engine.no_thinking_text.endswith("</seed:think>")
    assert planned(monkeypatch, City, model="seed-oss-36b", thinking=True).chat_template_kwargs is None
    assert planned(monkeypatch, City, model="seed-oss-36b", chat_template="{{ x }}").engine.no_thinking_text == ""
    with pytest.raises(OptionError, match=r"thinking_budget=512\), and this job has no thinking: pass thinking=True"):
        planned(monkeypatch, City, model="seed-oss-36b", chat_template_kwargs={"thinking_budget": 512})


def test_the_text_that_ends_the_thinking_follows_the_template(tiny: str) -> None:
    """It is in prompts without thinking alone, and its special tokens are that."""
    from transformers import AutoTokenizer
    from vllm import AsyncEngineArgs
    from vllm.renderers import renderer_from_config

    from daft_vllm import EngineConfig
    from daft_vllm.engine.text.render import RequestRenderer

    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    args = AsyncEngineArgs(model=tiny, load_format="dummy", max_model_len=512)
    template = "{{ messages[0].content }}<|im_start|>{% if thinking_budget == 0 %}<|im_end|>{% endif %}"
    config = EngineConfig(tiny, chat_template=template, no_thinking_text="I answer.<|im_end|>")
    renderer = RequestRenderer(config, renderer_from_config(args.create_engine_config()), 512)
    tokenizer = AutoTokenizer.from_pretrained(tiny)

    def text(thinking: bool | None, **kwargs: Any) -> str:
        (row,) = renderer.prepare([Request("Hi", thinking=thinking, chat_template_kwargs=kwargs)])
        assert not isinstance(row, Outcome)
        tokens = unpack_tokens(row.tokens)
        assert tokens.count(tokenizer.convert_tokens_to_ids("<|im_end|>")) == 2 * (thinking is False)
        return str(tokenizer.decode(tokens))

    assert text(False, thinking_budget=0) == "Hi<|im_start|><|im_end|>I answer.<|im_end|>"
    assert text(None) == "Hi<|im_start|>"


def test_smollm3_thinks_unless_it_is_told_not_to(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = planned(monkeypatch, model="smollm3-3b", thinking=True)  # the parser is known
    assert spec.engine.engine_args["reasoning_parser"] == known_models()["smollm3-3b"].prompting.reasoning_parser
    assert known_models()["smollm3-3b"].prompting.mode(None) == "thinking"
    assert planned(monkeypatch, City, model="smollm3-3b").thinking is False


@pytest.mark.parametrize("model", ["kimi-k2", "moonshotai/Kimi-K2-Instruct", "moonshotai/kimi-k2-instruct"])
def test_code_of_a_models_repository_runs_only_if_the_user_trusts_it(
    monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    for args in ({}, {"trust_remote_code": False}, {"trust_remote_code": 1}):
        with pytest.raises(OptionError, match=r'its tokenizer.* pass engine_args=\{"trust_remote_code": True\}'):
            planned(monkeypatch, model=model, engine_args=args)
        assert check(model=model, gpu="H200", engine_args=args)["options"].status == "failure"
    trusting = {"trust_remote_code": True}
    assert planned(monkeypatch, model=model, engine_args=trusting).engine.engine_args == trusting
    assert not any("trust_remote_code" in config.engine_args for config in known_models().values())


def test_the_commands_show_it() -> None:
    def shown(*arguments: str) -> str:
        result = CliRunner().invoke(app, [*arguments], env={"COLUMNS": "300", "TERM": "dumb"})
        assert result.exit_code == 0, result.output
        return result.output

    text = shown("config", "qwen3-8b")
    assert "thinking: unless switched off" in text
    assert "recommend for answers with thinking: temperature=0.6, top_p=0.95, top_k=20, min_p=0.0" in text
    assert "recommend for answers without thinking: temperature=0.7, top_p=0.8, top_k=20, min_p=0.0" in text
    assert "recommended_sampling=True applies that" in text
    text = shown("config", "phi-4")
    assert "makers recommend: nothing" in text
    assert "recommended_sampling" not in text
    assert "needs trust_remote_code=True in engine_args: its tokenizer" in shown("config", "kimi-k2")
    assert json.loads(shown("config", "kimi-k2", "--json"))["sampling"] == {"not_thinking": {"temperature": 0.6}}
    listed = {line["name"]: line["thinks_by_default"] for line in json.loads(shown("models", "--json"))}
    thinking = {name for name in ("smollm3-3b", "gemma-4-31b", "gpt-oss-20b", "phi-4") if listed[name]}
    assert thinking == {"smollm3-3b", "gpt-oss-20b"}
