"""Secrets are in no repr, plan, pickle, log or error, wherever they were put in; what rows say is one line."""

from __future__ import annotations

import io
import json
import logging
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable
from typing import Any

import cloudpickle
import daft
import pytest
from daft import DataType, col
from daft.io import (
    AzureConfig,
    GCSConfig,
    GravitinoConfig,
    HTTPConfig,
    HuggingFaceConfig,
    IOConfig,
    S3Config,
    TosConfig,
)
from daft.udf.metrics import _metrics_context
from typer.testing import CliRunner

import daft_vllm
from daft_vllm import EngineConfig, FileAccess, Outcome, Provider, SamplingOptions, check, prompt
from daft_vllm.cli import app
from daft_vllm.engine.process.cause import start_error
from daft_vllm.engine.requests.media import MediaError
from daft_vllm.engine.requests.outcome import ErrorValue
from daft_vllm.engine.setup.adapters import check_adapters
from daft_vllm.engine.setup.log import log_file
from daft_vllm.errors import OptionError, RowError
from daft_vllm.model_configs import derived_config
from daft_vllm.secrets import has_secrets, is_secret_name, without_secrets
from daft_vllm.tables.reading import read_input
from daft_vllm.udf.answers.return_format import ReturnFormat
from daft_vllm.udf.options import PromptOptions
from daft_vllm.udf.worker.actor import PromptActor
from daft_vllm.udf.worker.spec import PromptSpec
from tests.conftest import TINY_ARGS

SECRET = "hf_TopSecretTopSecretTopSecret99"
PLAIN = "plain-secret-4711"
"""Has nothing of a token: only its name says that it is secret."""


def cli(*arguments: str) -> str:
    return CliRunner().invoke(app, [*arguments], env={"COLUMNS": "400"}).output


def places(secret: str) -> dict[str, Callable[[], Any]]:
    """Return the places in which a secret is put."""
    user = f"https://someone:{secret}@example.com/a/b"
    signed = f"https://example.com/a.png?X-Amz-Signature={secret}"
    token = json.dumps({"hf_token": secret})
    header = {"h": [{"Authorization": f"x {secret}"}]}
    return {
        "hf_token": lambda: prompt(col("q"), engine_args={"hf_token": secret}),
        "hf_token as an option": lambda: prompt(col("q"), hf_token=secret),
        "hf_token of another type": lambda: prompt(col("q"), engine_args={"hf_token": [secret]}),
        "hf_token of a config": lambda: EngineConfig("m", {"hf_token": secret}),
        "hf_token of a provider": lambda: Provider(engine_args={"hf_token": secret}),
        "hf_token of a check": lambda: check(engine_args={"hf_token": secret}),
        "hf_token of the command": lambda: cli("config", "smollm2-135m", "--engine-args", token),
        "hf_token of a run": lambda: cli("run", "--input", __file__, "--prompt", "q", "--engine-args", token),
        "hf_token of a check by the command": lambda: cli("check", "smollm2-135m", "--engine-args", token),
        "text in place of a run's engine_args": lambda: cli("run", "--input", "x", "--engine-args", f'"{secret}"'),
        "engine_args of another type": lambda: prompt(col("q"), engine_args=[secret]),
        "text in place of engine_args": lambda: cli("config", "smollm2-135m", "--engine-args", f'"{secret}"'),
        "a key of a loader": lambda: prompt(col("q"), engine_args={"model_loader_extra_config": {"accessKey": secret}}),
        "a header": lambda: prompt(col("q"), engine_args={"additional_config": header}),
        "a URL with a password": lambda: EngineConfig("m", {"otlp_traces_endpoint": user}),
        "a URL with a signature": lambda: EngineConfig("m", {"download_dir": signed}),
        "a model's URL": lambda: prompt(col("q"), model=f"https://user:{secret}@huggingface.co/o/n"),
        "a model's hf:// URL": lambda: prompt(col("q"), model=f"hf://{secret}@o/n"),
        "a model's signed URL": lambda: prompt(col("q"), model=f"https://huggingface.co/o/n?token={secret}"),
        "a model of a config": lambda: EngineConfig(user),
        "a model of a check": lambda: check(model=user),
        "a model of the command": lambda: cli("config", f"https://user:{secret}@example.com/o/n"),
        "a model whose config is read": lambda: derived_config(user),
        "an adapter": lambda: prompt(col("q"), adapters={"a": user}),
        "an adapter's folder": lambda: check_adapters({"a": signed}, {}),
        "an input": lambda: read_input(f"{user}.foo?sig={secret}"),
        "an input of the command": lambda: cli("run", "--input", signed, "--prompt", "{q}", "--output", "x.csv"),
        "files of another type": lambda: prompt(col("q"), files=IOConfig(s3=S3Config(access_key=secret))),
        "a row's URL": lambda: FileAccess().read(signed.replace("https", "ftp")),
        "a row's URL with a password": lambda: FileAccess().read(f"http://u:{secret}@example.com/x"),
        "an error of a row": lambda: Outcome.failed("engine_error", f"GET {user} {signed} Bearer {secret}"),
    }


def told(make: Callable[[], Any]) -> str:
    """Return all that is said of a value, or of the error in its place."""
    try:
        made = make()
    except MediaError as e:  # its message becomes the row's error
        return f"{e!r} {e} {e.error!r}"
    except Exception as e:
        return "".join(traceback.format_exception(e)) + repr(e)
    return f"{made!r} {made} {vars(made) if hasattr(made, '__dict__') else ''}"


@pytest.mark.parametrize("place", places(""))
@pytest.mark.parametrize("secret", [SECRET, PLAIN])
def test_a_secret_is_nowhere_said(place: str, secret: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        text = told(places(secret)[place])
    assert text.strip()
    assert secret not in text
    assert secret not in caplog.text


STORES = {
    "s3 key": IOConfig(s3=S3Config(key_id="id", access_key=SECRET)),
    "s3 session": IOConfig(s3=S3Config(key_id="id", access_key="x" * 9, session_token=SECRET)),
    "s3 address": IOConfig(s3=S3Config(endpoint_url=f"http://u:{SECRET}@store")),
    "azure key": IOConfig(azure=AzureConfig(access_key=SECRET)),
    "azure signature": IOConfig(azure=AzureConfig(storage_account="a", sas_token=SECRET)),
    "azure bearer": IOConfig(azure=AzureConfig(bearer_token=SECRET)),
    "azure client": IOConfig(azure=AzureConfig(client_id="id", client_secret=SECRET)),
    "gcs credentials": IOConfig(gcs=GCSConfig(credentials=SECRET)),
    "gcs token": IOConfig(gcs=GCSConfig(token=SECRET)),
    "http bearer": IOConfig(http=HTTPConfig(bearer_token=SECRET)),
    "the hub": IOConfig(hf=HuggingFaceConfig(token=SECRET)),
    "tos": IOConfig(tos=TosConfig(access_key="id", secret_key=SECRET)),
    "gravitino": IOConfig(gravitino=GravitinoConfig(password=SECRET)),
    "opendal": IOConfig(opendal_backends={"x": {"password": SECRET}}),
}


@pytest.mark.parametrize("store", STORES)
def test_credentials_of_stores_are_in_no_repr_plan_or_pickle(store: str) -> None:
    access = FileAccess(io_config=STORES[store])
    asked = prompt(col("q"), files=access, use_process=False, gpus=0)
    spec = PromptSpec(EngineConfig("m"), SamplingOptions(), ReturnFormat.of(None), options=PromptOptions(files=access))
    plan = io.StringIO()
    daft.from_pydict({"q": ["x"]}).with_column("a", asked).explain(show_all=True, file=plan)
    for text in (repr(access), str(access), repr(spec), repr(asked), str(asked), plan.getvalue()):
        assert SECRET not in text
    for made in (access, spec, asked, PromptActor(spec)):
        if not isinstance(made, PromptActor):
            assert SECRET.encode() not in cloudpickle.dumps(made)
    assert pickle.loads(pickle.dumps(access)).io_config is STORES[store]  # this process has them
    with pytest.raises(OptionError, match="keys are not sent to engines in other processes") as refused:
        prompt(col("q"), files=access, use_process=True, gpus=0)
    assert SECRET not in str(refused.value)
    assert SECRET not in str(check(files=access, use_process=True))
    assert access.digest("s3://b/k") != FileAccess().digest("s3://b/k")


def test_another_process_has_no_credentials() -> None:
    data = pickle.dumps(FileAccess(io_config=STORES["s3 key"]))
    code = f"import pickle; pickle.loads({data!r})"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "keys are not sent to engines in other processes" in ran.stderr
    keyless = FileAccess(io_config=IOConfig(s3=S3Config(region_name="eu-1")))
    code = f"import pickle; print(pickle.loads({pickle.dumps(keyless)!r}).io_config.s3.region_name)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "eu-1\n"
    prompt(col("q"), files=keyless, use_process=True, gpus=0)


def test_two_keys_give_two_digests() -> None:
    first, second = (FileAccess(io_config=IOConfig(s3=S3Config(access_key=key))) for key in ("first", "second"))
    assert first.digest("s3://b/k") != second.digest("s3://b/k")


def test_variables_of_the_environment_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "not-like-a-token")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")
    text = start_error("m", ValueError("bad 'not-like-a-token' wJalrXUtnFEMI"), "", None, "log")
    assert "not-like-a-token" not in text
    assert "wJalrXUtnFEMI" not in text
    assert "bad '***' ***" in text


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        *((n, True) for n in ("hf_token", "apiKey", "X-Api-Key", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "sas_token")),
        *((n, False) for n in ("eos_token", "max_num_batched_tokens", "tokenizer", "image_token", "keys", "monkey")),
    ],
)
def test_names_of_secrets(name: str, secret: bool) -> None:
    assert is_secret_name(name) is secret
    assert has_secrets({"a": [{name: "x"}]}) is secret
    assert not has_secrets({name: None, "other": {name: False}})


def test_a_stored_token_may_be_asked_for() -> None:
    assert EngineConfig("m", {"hf_token": True}).engine_args["hf_token"] is True
    assert without_secrets("see https://example.com/a/b, and key=5") == "see https://example.com/a/b, and key=5"


ESCAPE = "\x1b]0;owned\x07\u202e\nsecond line " + "long " * 500


def test_what_a_row_says_is_one_line() -> None:
    said = [
        ErrorValue("invalid_output", ESCAPE).message,
        MediaError("invalid_media", ESCAPE).error.message,
        ReturnFormat.of(["yes", "no"]).parse(ESCAPE).error,
        ReturnFormat.of(int).parse(ESCAPE).error,
        ReturnFormat.of({"type": "integer"}).parse(f'"{"x" * 5000}"').error,
    ]
    for message in map(str, said):
        assert message.isprintable()
        assert len(message) < 550
    assert pickle.loads(pickle.dumps(ErrorValue("truncated", "x"))) == ErrorValue("truncated", "x")


@pytest.mark.parametrize("wrong", ["PrivateAnswer", '{"PrivateAnswer": 1}'])
def test_answers_are_logged_at_debug_only(wrong: str, caplog: pytest.LogCaptureFixture) -> None:
    form = ReturnFormat.of(["yes", "no"])
    spec = PromptSpec(EngineConfig("m"), SamplingOptions(), form)
    outcome = Outcome(text=wrong, finish_reason="stop")
    parsed = [form.parse_outcome(None, outcome)]
    with _metrics_context(), caplog.at_level(logging.INFO):
        PromptActor(spec)._report([outcome], parsed)
    assert "row 0 of a batch of 'the answers': invalid_output (details=True has the reason)" in caplog.text
    assert "PrivateAnswer" not in caplog.text
    failed = Outcome.failed("unavailable_media", "no such file")
    with _metrics_context(), caplog.at_level(logging.DEBUG):
        PromptActor(spec)._report([outcome, failed], [*parsed, form.parse_outcome(None, failed)])
    assert "the first is row 1 of a batch of 'the answers': unavailable_media: no such file" in caplog.text
    assert "PrivateAnswer" in caplog.text
    raising = PromptActor(PromptSpec(EngineConfig("m"), SamplingOptions(), form, PromptOptions(on_error="raise")))
    with _metrics_context(), pytest.raises(RowError, match=r"the first is row 0 of a batch of .*: invalid_output"):
        raising._report([outcome], parsed)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("part", ["a", "a://", "://", "a://b?", "hf_", "Bearer ", "a@", "sk-", "a b "])
def test_long_messages_are_cut_at_once(part: str) -> None:
    """A megabyte of text that nearly looks like a secret, and a secret that the cut goes through."""
    message = ErrorValue("invalid_output", f"{part * (1_000_000 // len(part))} {SECRET}").message
    assert len(message) < 600
    for padding in range(3_940, 4_001):
        hidden = ErrorValue("invalid_output", f"http://h?{'x' * (padding - 9)} {SECRET} after").message
        assert hidden.startswith("http://h?...")
        assert SECRET[3:9] not in hidden


@pytest.mark.other_engine
def test_a_run_writes_no_prompt_and_no_token_into_a_log(
    tiny: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    before = log_file().size()
    df = daft.from_pydict({"q": ["PrivatePrompt one", "PrivatePrompt " * 900]})
    options = {"model": tiny, "engine_args": TINY_ARGS, "use_process": False, "gpus": 0, "max_tokens": 4}
    asked = daft_vllm.prompt(col("q"), system_message="PrivateSystem", details=True, **options)
    with caplog.at_level(logging.INFO):
        rows = df.select(asked.alias("a")).to_pydict()["a"]
    assert rows[0]["text"] is not None
    assert rows[1]["error"].startswith("prompt_too_long")
    screen = capfd.readouterr()
    for text in (caplog.text, log_file().read(before), screen.out, screen.err):
        for private in ("PrivatePrompt", "PrivateSystem", SECRET, rows[0]["text"]):
            assert private not in text or not private.strip()


def test_a_preview_shows_control_characters_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    from daft_vllm.cli.preview import Screen

    Screen("a", "e").write(daft.from_pydict({"a": ["\x1b]0;owned\x07"], "e": daft.Series.from_pylist([None])}))
    shown = capsys.readouterr().out
    assert "\x1b]0" not in shown
    assert r"\x1b]0;owned\x07" in shown


def test_files_that_hold_python_objects_are_not_read(tmp_path: Any) -> None:
    """Daft unpickles them, which can run any code."""
    objects = daft.Series.from_pylist([object], dtype=DataType.python())
    daft.from_pydict({"q": ["x"], "o": objects}).write_parquet(str(tmp_path))
    with pytest.raises(OptionError, match="has Python objects in o"):
        read_input(str(tmp_path))
