"""Options are stated once: in the object, which ``prompt()``'s signature and the command's help follow."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import typing
from dataclasses import fields
from pathlib import Path
from typing import Any

import daft
import pytest
from daft import col
from typer.testing import CliRunner

from daft_vllm import prompt
from daft_vllm.cli import app
from daft_vllm.engine.requests.sampling import SamplingOptions
from daft_vllm.errors import OptionError, SchemaError
from daft_vllm.udf.answers.formats import Tools
from daft_vllm.udf.columns.files import FileAccess
from daft_vllm.udf.columns.parts import Messages
from daft_vllm.udf.options import (
    DEFAULT,
    OPTION_NAMES,
    PromptOptions,
    SamplingArguments,
    option_default,
    option_help,
)
from daft_vllm.udf.other_names import NOT_HERE, OTHER_NAMES

NAMES = {"daft": daft, "Tools": Tools, "FileAccess": FileAccess, "Messages": Messages}
"""What the options are typed with, and ``options.py`` imports for type checkers only."""


def test_the_signature_has_every_option_of_the_object() -> None:
    """By name, type and default, in the same order."""
    parameters = inspect.signature(prompt).parameters
    assert tuple(parameters) == ("messages", *OPTION_NAMES, "options")
    assert all(parameters[name].default == getattr(DEFAULT, name) for name in OPTION_NAMES)
    ours = typing.get_type_hints(PromptOptions, localns=NAMES)
    theirs = typing.get_type_hints(prompt)
    assert {name: ours[name] for name in OPTION_NAMES} == {name: theirs[name] for name in OPTION_NAMES}
    assert typing.get_args(theirs["options"]) == (SamplingArguments,)


def test_sampling_arguments_are_the_sampling_options_or_a_column() -> None:
    arguments = typing.get_type_hints(SamplingArguments, localns=NAMES)
    options = typing.get_type_hints(SamplingOptions)
    assert list(arguments) == list(SamplingOptions.model_fields)
    assert arguments == {name: options[name] | daft.Expression for name in arguments}


def test_every_option_has_a_line_of_help_which_the_command_shows() -> None:
    for name in (*(one.name for one in fields(PromptOptions)), *SamplingOptions.model_fields):
        text = option_help(name)
        assert text.endswith(".")
        assert len(text) < 90
    result = CliRunner().invoke(app, ["run", "--help"], env={"COLUMNS": "300", "TERM": "dumb"})
    for name in ("model", "gpus", "max_concurrency", "retries", "goal", "max_tokens", "temperature", "system_message"):
        assert option_help(name) in " ".join(result.output.split())
    assert option_default("max_tokens") == 1024
    assert option_default("retries") == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"enforce": "maybe"}, "enforce is 'strict' or 'validate'"),
        ({"backend": "outlines"}, "backend is 'auto'"),
        ({"retries": -1}, "retries is a whole number"),
        ({"on_error": "log"}, "on_error is 'null' or 'raise'"),
        ({"use_process": "no"}, "use_process is True, False or 'auto'"),
        ({"use_process": 1}, "use_process is True, False or 'auto'"),
        ({"max_concurrency": None}, "max_concurrency is a whole number"),
        ({"turns": daft.col("x")}, "turns is a list of pairs"),
        ({"engine_args": ["x"]}, "engine_args is a dict"),
        ({"examples": daft.col("x")}, "examples is a list of pairs"),
        ({"max_concurrency": 0}, "max_concurrency is a whole number"),
        ({"batch_size": 1.5}, "batch_size is a whole number"),
        ({"files": "/data"}, "files is FileAccess"),
        ({"system_message": "x", "apply_chat_template": False}, "system_message needs the chat template"),
        ({"thinking_token_budget": 5}, "thinking=True"),
        ({"temprature": 1}, "Did you mean 'temperature'"),
        ({"schema": {}}, "no option 'schema': write return_format"),
        ({"choices": ["a"]}, "no option 'choices': write return_format"),
        ({"max_new_tokens": 5}, "write max_tokens"),
        ({"max_model_len": 4096}, "write engine_args={'max_model_len': 4096}"),
        ({"details": "yes"}, "details is True or False, got 'yes'."),
        ({"system_message": 3}, "system_message is a text, a column or None, got 3."),
        ({"goal": 3}, "goal is a text or None"),
        ({"adapters": {"a": 3}}, "adapters is a dict of names and folders"),
        ({"stall_timeout": "5"}, "stall_timeout is a number"),
        ({"row_timeout": 0}, "row_timeout is a number greater than 0 or None, got 0."),
        ({"deadline": "tomorrow"}, "deadline is a time, such as '2026-12-01T06:00', got 'tomorrow'."),
        ({"deadline": 3600}, "deadline is a time, '2026-12-01T06:00', got 3600."),
        ({"max_concurency": 2}, "Did you mean 'max_concurrency'"),
        ({"ray_options": 2}, "ray_options is a dict by Ray's names"),
        ({"ray_options": {"max_concurrency": 2}}, "ray_options can't have 'max_concurrency': daft-vllm sets"),
        ({"ray_options": {"num_gpus": 2}}, "ray_options can't have 'num_gpus': write gpus=."),
        ({"ray_options": {"num_cpu": 2}}, "Ray has no option 'num_cpu' for actors. Did you mean 'num_cpus'?"),
        ({"ray_options": {"resources": {"GPU": 1}}}, "Ray takes no dict like this one for 'resources'"),
        ({"ray_options": {"num_cpus": "two"}}, "Ray takes no str like this one for 'num_cpus'"),
    ],
)
def test_what_an_option_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message.replace("(", r"\(")):
        PromptOptions.of(options)


@pytest.mark.parametrize("name", [name for name in OPTION_NAMES if name != "return_format"])
def test_every_option_refuses_a_value_of_another_type(name: str) -> None:
    with pytest.raises(OptionError, match=rf"^{name} is .*, got object\.$") as caught:
        PromptOptions.of({name: object()})
    assert len(str(caught.value)) < 200
    PromptOptions.of({name: option_default(name)})


def test_an_unknown_option_is_told_in_a_line() -> None:
    with pytest.raises(OptionError) as caught:
        PromptOptions.of({"temprature": 1})
    assert len(str(caught.value)) < 120


@pytest.mark.parametrize(
    ("names", "meant"),
    [
        ("response_model response_schema guided_decoding labels json_mode", "return_format"),
        ("max_length num_predict", "max_tokens"),
        ("stop_sequences stop_strings stop_words", "stop."),
        ("max_seq_len num_ctx context_length", "engine_args={'max_model_len'"),
        ("tp tp_size", "engine_args={'tensor_parallel_size'"),
        ("max_input_tokens", "truncate_prompt_tokens"),
        ("temp", "temperature"),
        ("few_shot", "examples"),
        ("ignore_errors", "on_error"),
        ("workers", "max_concurrency"),
        ("best_of", "a row has one answer"),
        ("api_key provider", "the model runs in this query"),
    ],
)
def test_names_of_other_libraries(names: str, meant: str) -> None:
    for name in names.split():
        with pytest.raises(OptionError) as caught:
            PromptOptions.of({name: 1})
        assert meant in str(caught.value), name
        assert "Did you mean" not in str(caught.value)


def test_other_names_lead_to_options_there_are_and_hide_none() -> None:
    ours = {*OPTION_NAMES, *SamplingOptions.model_fields}
    assert not ours & {*OTHER_NAMES, *NOT_HERE}
    assert not {*OTHER_NAMES} & {*NOT_HERE}
    for meant in OTHER_NAMES.values():
        name = meant.partition("=")[0].partition(" ")[0]
        assert name in ours or " " in meant or meant.startswith("image("), meant


def test_a_worker_gets_no_columns_and_nothing_twice() -> None:
    options = PromptOptions(
        return_format=int,
        system_message=daft.col("s"),
        adapter="legal",
        turns=[(daft.col("a"), daft.col("q"))],
        examples=[("1 + 1?", 2)],
        retries=2,
        ray_options={"resources": {"a100": 1}},
        sampling={"max_tokens": daft.col("limit"), "seed": 1},
    )
    assert options.row_sampling.keys() == {"max_tokens"}
    assert options.common_sampling == SamplingOptions(seed=1)
    assert options.for_worker() == PromptOptions(adapter="legal", retries=2)


SCRIPT = """
from pydantic import BaseModel

import daft
from daft import col, lit
from daft_vllm import FileAccess, check, image, prompt


class City(BaseModel):
    capital: str


expression: daft.Expression = prompt(
    [image(col("photo")), col("question"), lit("Which city is it?")],
    City,
    enforce="validate",
    backend="guidance",
    describe_schema=False,
    thinking=True,
    skip_blank=True,
    recommended_sampling=False,
    tools=[],
    tool_choice="auto",
    tool_parser="hermes",
    parallel_tool_calls=False,
    retries=2,
    turns=[(col("a"), [col("b"), lit("Why?")]), (col("c"), col("d"))],
    system_message=col("system"),
    examples=[("1 + 1?", "2"), ("France?", City(capital="Paris"))],
    files=FileAccess(folders=["/data"]),
    model="qwen3-8b",
    engine_args={"max_model_len": 4096, "dtype": "bfloat16"},
    goal="text",
    apply_chat_template=True,
    chat_template="{{ messages }}",
    chat_template_kwargs={"enable_thinking": False},
    truncate_prompt_tokens=-1,
    truncation_side="left",
    adapters={"legal": "/adapters/legal"},
    adapter=col("field"),
    gpus=0.5,
    reproducible=True,
    draft="on",
    use_process=True,
    max_concurrency=2,
    ray_options={"resources": {"a100": 1}},
    batch_size=64,
    dedupe=False,
    on_error="raise",
    details=True,
    stall_timeout=60,
    max_restarts=1,
    row_timeout=30,
    deadline="2026-12-01T06:00",
    store="/tmp/store",
    store_changed=True,
    store_retry={"max_tokens": 2048},
    row_key=col("id"),
    progress_folder="/tmp/progress",
    temperature=0.7,
    top_p=0.9,
    top_k=40,
    min_p=0.05,
    presence_penalty=0.1,
    frequency_penalty=col("penalty"),
    repetition_penalty=1.1,
    seed=col("seed"),
    max_tokens=col("limit"),
    min_tokens=1,
    thinking_token_budget=100,
    stop=["END"],
    stop_token_ids=[2],
    include_stop_str_in_output=True,
    ignore_eos=False,
    bad_words=["no"],
    logit_bias={1: -1.0},
    allowed_token_ids=[1, 2],
    skip_special_tokens=False,
    spaces_between_special_tokens=True,
)
df = daft.from_pydict({"question": ["?"]}).with_column("answer", expression)
print(check(col("question"), City, df=df, max_tokens=10).ok)
"""
_BIN = Path(sys.executable).parent


# Errors in each script, by mypy's and pyright's names. A call with an unknown argument is all that pyright says of it.
WRONG = {
    "mypy": ('"retrys" for "prompt"', '"temprature" for "prompt"', "Literal['maybe']", 'Argument "top_k"'),
    "pyright": ('No parameter named "retrys"', 'No parameter named "temprature"'),
}
MYPY = """
[mypy]
strict = True
[mypy-vllm.*,torch.*,transformers.*,ray.*,xgrammar.*]
follow_imports = skip
"""


def _problems(folder: Path, checker: str) -> list[tuple[str, str]]:
    """Run a type checker on the scripts in a folder; return each error's file and text."""
    if checker == "mypy":
        (folder / "mypy.ini").write_text(MYPY, encoding="utf-8")  # else it reads vLLM and torch, for 40 seconds
        command = [_BIN / "mypy", "--output=json", "--cache-dir", folder / "cache", folder]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=300)
        found = [json.loads(line) for line in done.stdout.splitlines()]
        return [(Path(one["file"]).name, one["message"]) for one in found if one["severity"] == "error"]
    command = [_BIN / "pyright", "--outputjson", "--pythonpath", sys.executable, folder]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=300)
    diagnostics = json.loads(done.stdout)["generalDiagnostics"]
    return [(Path(one["file"]).name, one["message"]) for one in diagnostics if one["severity"] == "error"]


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_users_script_is_checked(tmp_path: Path, checker: str) -> None:
    """One with every option has no error; misspelt options, and values of another type, are found."""
    assert all(f" {name}=" in SCRIPT for name in (*OPTION_NAMES[1:], *SamplingOptions.model_fields))
    wrong = SCRIPT
    for right, error in (
        ("retries=2", "retrys=2"),
        ("temperature=0.7", "temprature=0.7"),
        ('enforce="validate"', 'enforce="maybe"'),
        ("top_k=40", 'top_k="many"'),
    ):
        wrong = wrong.replace(right, error)
    (tmp_path / "right.py").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "wrong.py").write_text(wrong, encoding="utf-8")
    found = _problems(tmp_path, checker)
    assert [text for file, text in found if file == "right.py"] == []
    said = "\n".join(text for file, text in found if file == "wrong.py")
    assert all(text in said for text in WRONG[checker]), said


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"max_tokens": "5", "temperature": -1}, ["max_tokens", "got '5'; temperature must be"]),
        ({"top_p": 2, "temperature": -1, "seed": "x"}, ["seed", "temperature", "top_p"]),
        ({"batch_size": 0, "retries": -1}, ["batch_size", "retries"]),
        ({"max_tokens": "5", "min_tokens": 2000}, ["option max_tokens: Input should be a valid integer, got '5'"]),
    ],
)
def test_all_wrong_values_are_named_at_once(given: dict[str, Any], expected: list[str]) -> None:
    with pytest.raises(OptionError) as raised:
        prompt(col("q"), **given)
    assert all(part in str(raised.value) for part in expected)
    assert "min_tokens" not in str(raised.value)


def test_a_choice_is_named_once() -> None:
    with pytest.raises(SchemaError, match="'yes' is among the choices more than once"):
        prompt(col("q"), ["yes", "no", "yes"])
