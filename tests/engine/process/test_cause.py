"""Why vLLM did not start, or died: what the log and the end of its process say."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError, model_validator

from daft_vllm import EngineConfig, OfflineEngine
from daft_vllm.engine.process.cause import died_of, start_error
from daft_vllm.engine.process.early_core import EarlyContext, core_start
from daft_vllm.engine.setup.log import LogFile, mark_own_warnings, own_warnings
from daft_vllm.errors import EngineStartError
from tests.conftest import TINY_ARGS

SEE_ABOVE = RuntimeError("Engine core initialization failed. See root cause above. Failed core proc(s): {}")

WORKER = """\
INFO 11-30 04:08:44 [parallel_state.py:1] rank 1 in world size 2, GPU KV cache size: 1,024 tokens
(Worker_TP1 pid=7) ERROR 11-30 04:08:45 [multiproc_executor.py:953] WorkerProc failed to start.
(Worker_TP1 pid=7) ERROR 11-30 04:08:45 [multiproc_executor.py:953] Traceback (most recent call last):
(Worker_TP1 pid=7) ERROR 11-30 04:08:45 [multiproc_executor.py:953]   File "x.py", line 1, in load_model
(Worker_TP1 pid=7) ERROR 11-30 04:08:45 [multiproc_executor.py:953] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.
\x1b[0;36m(EngineCore pid=6)\x1b[0;0m \x1b[31mERROR\x1b[0m \x1b[90m11-30 04:08:48\x1b[0m \x1b[90m[core.py:1510]\x1b[0m Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause.
Traceback (most recent call last):
  File "core.py", line 2, in run
Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause.
"""  # noqa: E501


def test_the_error_of_a_gpus_worker_is_the_cause() -> None:
    error = start_error("m", SEE_ABOVE, WORKER, 1, "/tmp/x.log")
    assert error == (
        "vLLM did not start with model 'm': torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.\n"
        "Lower max_model_len or gpu_memory_utilization in engine_args, or use more GPUs or a smaller model.\n"
        "The log of vLLM is /tmp/x.log."
    )


@pytest.mark.parametrize(
    ("log", "exit_code", "expected"),
    [
        ("", -9, ["core was killed by signal 9 (SIGKILL)", "memory runs out"]),
        ("", -7, ["SIGBUS", "--shm-size"]),
        ("", -signal.SIGILL, ["SIGILL", "instruction"]),
        ("Fatal Python error: Segmentation fault\n", -11, ["SIGSEGV", "Fatal Python error"]),
        ("terminate called after throwing an instance of 'std::bad_alloc'\n", -6, ["bad_alloc", "smaller model"]),
        (
            "Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down executor.\n",
            1,
            ["worker was killed by signal 9", "memory runs out"],
        ),
        (
            "Exception: WorkerProc initialization failed due to an exception in a background process. "
            "See stack trace for root cause.\n",
            1,
            ["A worker ended without an error", "memory"],
        ),
        ("OSError: [Errno 28] No space left on device\n", 1, ["No space left", "Free disk space"]),
        (
            "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully "
            "covered\nValueError: MetadataIncompleteBuffer\n",
            1,
            ["deserializing header", "download the model again"],
        ),
        ("first\nlast words\n", 1, ["first / last words"]),
        ("", None, ["See root cause above"]),
        (f"ValueError: {'x' * 10_000}\n" * 50, 1, ["ValueError: xxx"]),
        ("".join(f"ValueError: {i} {'x' * 1000}\n" for i in range(50)), 1, ["ValueError: 0", "ValueError: 2"]),
    ],
)
def test_what_ends_a_start(log: str, exit_code: int | None, expected: list[str]) -> None:
    error = start_error("m", SEE_ABOVE, log, exit_code, "x.log")
    for part in expected:
        assert part in error
    assert len(error) < 3000


def test_what_vllm_itself_says_stays() -> None:
    assert "awq" in start_error("m", ValueError("no file for awq"), WORKER, None, "x.log")


def test_what_pydantic_wraps_around_an_error_is_left_out() -> None:
    class Config(BaseModel):
        max_num_seqs: Annotated[int, Field(ge=1)] = 1
        method: Literal["awq"] = "awq"

        @model_validator(mode="after")
        def _check(self) -> Config:
            raise ValueError("no config file for awq")

    told = []
    for given in ({"max_num_seqs": 0, "method": "x"}, {}):
        with pytest.raises(ValidationError) as e:
            Config(**given)
        told.append(start_error("m", e.value, "", None, "x.log").splitlines()[0])
        in_log = start_error("m", SEE_ABOVE, f"pydantic_core._pydantic_core.ValidationError: {e.value}\n", 1, "x.log")
        assert "input_value" not in in_log
        assert "further information" not in in_log
    start = "vLLM did not start with model 'm': "
    assert told == [
        f"{start}max_num_seqs: Input should be greater than or equal to 1; method: Input should be 'awq'",
        f"{start}no config file for awq",
    ]


def test_an_error_about_a_variable_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VLLM_CPU_KVCACHE_SPACE", "HOME"):
        monkeypatch.setenv(name, "abc")
    error = ValueError("invalid literal for int() with base 10: 'abc'")
    told = start_error("m", error, "", None, "x.log").splitlines()
    assert told[1] == "The value comes from the environment: VLLM_CPU_KVCACHE_SPACE=abc."
    named = ValueError("VLLM_CPU_KVCACHE_SPACE can't be 'abc'")
    assert "environment" not in start_error("m", named, "", None, "x.log")


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        ("No available memory for the cache blocks.", "raise kv_cache_memory_bytes"),
        ("(1.0 GiB KV cache is needed, which is larger than the available KV cache memory", "raise kv_cache_memory"),
        ("Available memory on node 0 is less than requested memory for kv (4096.0 GiB).", "Lower kv_cache_memory_b"),
        ('ipc path "/a/x" is longer than 107 characters (sizeof(sockaddr_un.sun_path)).', "VLLM_RPC_BASE_PATH"),
        ("[Errno 30] Read-only file system: '/home/me/.cache/vllm'", "VLLM_CACHE_ROOT"),
        ("[Errno 13] Permission denied: '/home/me/.cache/vllm'", "VLLM_CACHE_ROOT"),
    ],
)
def test_advice_fits_the_cause(error: str, advice: str) -> None:
    assert advice in start_error("m", ValueError(error), "", None, "x.log")


def test_vllm_ends_by_itself_after_a_sigterm() -> None:
    assert died_of("some line\n", -signal.SIGTERM, "x.log") == "Its log doesn't say why. The log of vLLM is x.log."


def test_how_the_core_ended_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    log = LogFile()
    with core_start(log) as start:
        process = EarlyContext().Process(target=os.system, args=("echo out; echo error >&2; kill -9 $PPID",))
        process.start()
        assert start.exit_code(60) == -signal.SIGKILL
        assert sorted(start.written().split()) == ["error", "out"]
    log.remove()
    assert not log.path.exists()


def _warn() -> None:
    mark_own_warnings()
    mark_own_warnings()
    for name, text in (("daft_vllm", "a change is left out"), ("vllm", "of theirs")) * 2:
        logging.getLogger(name).warning(text)


def test_our_warnings_come_out_of_vllms_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with core_start(LogFile()) as start:
        EarlyContext().Process(target=_warn).start()
        assert start.exit_code(60) == 0
        assert own_warnings(start.written()) == ["a change is left out"]
        assert "of theirs" in start.written()


def test_the_cause_of_a_failed_start_is_in_the_error(tiny: str, capfd: pytest.CaptureFixture[str]) -> None:
    args = {**TINY_ARGS, "max_model_len": 2048, "kv_cache_memory_bytes": 1 << 20}
    with pytest.raises(
        EngineStartError, match=r"(?s)larger than the available KV cache memory.*\nLower max_model_len"
    ) as e:
        OfflineEngine(EngineConfig(tiny, args))
    log = Path(str(e.value).split("The log of vLLM is ")[1].rstrip("."))
    assert "EngineCore failed to start" in log.read_text()
    assert "EngineCore failed to start" in capfd.readouterr().err, "VLLM_LOGGING_LEVEL is set: the screen has it too"
