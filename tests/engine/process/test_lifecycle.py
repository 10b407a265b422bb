"""Death, stalls and ends: no call waits for ever and no process is left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

from daft_vllm import EngineConfig, OfflineEngine, Request, SamplingOptions
from daft_vllm.engine.process.core import Core
from daft_vllm.engine.process.early_core import EarlyProcess
from daft_vllm.engine.process.step_watch import StepWatch
from daft_vllm.engine.requests.outcome import Outcome
from daft_vllm.engine.scheduling.row import Row
from daft_vllm.engine.setup.environment import environment_variables
from daft_vllm.engine.setup.openmp import openmp_environment
from daft_vllm.errors import EngineClosedError, EngineDiedError, EngineStartError
from tests.conftest import TINY_ARGS
from tests.helpers import wait_gone

LONG = SamplingOptions(max_tokens=400, ignore_eos=True)


def run_in_threads(engine: OfflineEngine, callers: int) -> tuple[list[threading.Thread], list[BaseException]]:
    """Start ``callers`` threads with rows that take long, and collect what each raises."""
    raised: list[BaseException] = []

    def call(caller: int) -> None:
        try:
            engine.run([Request(f"story {caller} {i}", sampling=LONG) for i in range(200)])
        except BaseException as e:
            raised.append(e)

    threads = [threading.Thread(target=call, args=(caller,)) for caller in range(callers)]
    for thread in threads:
        thread.start()
    while engine.stats().steps == 0:
        time.sleep(0.05)
    return threads, raised


def core_of(engine: OfflineEngine) -> psutil.Process:
    """Return vLLM's core: the one of its processes that is a direct child of this process."""
    return next(p for p in map(psutil.Process, engine.process_ids) if p.ppid() == os.getpid())


def test_a_dead_core_is_replaced_and_its_rows_are_replayed(
    tiny: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gpus: list[tuple[str | None, str | None]] = []
    start = Core.start

    def noted(config: EngineConfig, watch: StepWatch, before: list[psutil.Process]) -> Core:
        gpus.append((os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("CUDA_DEVICE_ORDER")))
        return start(config, watch, before)

    monkeypatch.setattr(Core, "start", noted)
    # In float32 an answer does not depend on the other rows of its batch.
    # As for an engine that has claimed a GPU.
    with environment_variables({"CUDA_VISIBLE_DEVICES": "3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}):
        engine = OfflineEngine(EngineConfig(tiny, {**TINY_ARGS, "dtype": "float32"}, max_restarts=2))
    pids = engine.process_ids
    requests = [
        Request(f"story {i % 250}", sampling=SamplingOptions(max_tokens=60, ignore_eos=True)) for i in range(300)
    ]
    futures = [engine.submit(requests[start : start + 100]) for start in (0, 100, 200)]
    while engine.stats().done == 0:
        time.sleep(0.01)
    core_of(engine).terminate()  # SIGTERM, which programs that free memory send first: vLLM aborts its rows, then ends
    outcomes = [outcome for future in futures for outcome in future.result(timeout=60)]
    stats = engine.stats()
    stats.check()
    assert stats.restarts == 1
    assert stats.done == 300
    assert stats.abandoned == stats.failed == 0
    assert stats.computed_tokens >= stats.optimal_tokens > 0
    assert "is started again" in caplog.text
    assert not set(pids) & set(engine.process_ids)
    assert wait_gone(pids) == []

    # If no row waits, vLLM is started again when the next row comes.
    pids = engine.process_ids
    core_of(engine).kill()
    while "when it is needed" not in caplog.text:
        time.sleep(0.05)
    assert not engine.is_over
    assert [outcome.text for outcome in outcomes] == [o.text for o in engine.run(requests, dedupe=False)]
    assert engine.stats().restarts == 2
    (figures,) = engine.figures()
    assert (figures.state, figures.deaths, figures.restarts) == ("ready", 2, 2)
    assert gpus == [("3", "PCI_BUS_ID")] * 3

    # Now it has been started again as often as is allowed.
    pids += engine.process_ids
    future = engine.submit([Request(f"story {i}", sampling=LONG) for i in range(200)])
    while not engine.stats().in_flight:
        time.sleep(0.01)
    core_of(engine).kill()
    with pytest.raises(EngineDiedError, match=r"rows unanswered, after 2 restarts in a row"):
        future.result(timeout=20)
    assert (engine.figures()[0].state, engine.figures()[0].deaths) == ("ended", 3)
    engine.close()
    engine.stats().check()
    assert wait_gone(pids) == []


def test_a_row_that_kills_vllm_is_an_error_value_and_no_other_is(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    generate = Core.generate

    async def deadly(core: Core, request_id: str, row: Row) -> Outcome:
        if row.index == 47:
            core.kill()
        return await generate(core, request_id, row)

    monkeypatch.setattr(Core, "generate", deadly)
    engine = OfflineEngine(EngineConfig(tiny, {**TINY_ARGS, "max_num_seqs": 16}, max_restarts=4))
    sampling = SamplingOptions(max_tokens=8, ignore_eos=True)
    outcomes = engine.run([Request(f"story {i}", sampling=sampling) for i in range(100)])
    assert [i for i, outcome in enumerate(outcomes) if outcome.error] == [47]
    error = outcomes[47].error
    assert error is not None
    assert error.code == "engine_error"
    assert "died each of the 3 times" in error.message
    assert {outcome.completion_tokens for i, outcome in enumerate(outcomes) if i != 47} == {8}
    stats = engine.stats()
    stats.check()
    assert (stats.restarts, stats.done, stats.failed) == (3, 100, 1)

    # The engine is closed while vLLM starts again.
    before = psutil.Process().children(recursive=True)
    future = engine.submit([Request(f"story {i}", sampling=LONG) for i in range(40)])
    while not engine.stats().in_flight:
        time.sleep(0.01)
    core_of(engine).kill()
    while not (new := [p.pid for p in psutil.Process().children(recursive=True) if p not in before]):
        time.sleep(0.01)
    closed = time.monotonic()
    engine.close()
    assert time.monotonic() - closed < 5
    with pytest.raises(EngineClosedError):
        future.result(timeout=1)
    engine.stats().check()
    assert wait_gone(new, 1.0) == []


def test_a_dead_core_ends_every_call_and_close_cleans_up(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[bool] = []
    give = EarlyProcess.give
    monkeypatch.setattr(EarlyProcess, "give", lambda self, task: given.append(give(self, task)) or given[-1])
    engine = OfflineEngine(EngineConfig(tiny, TINY_ARGS, max_restarts=0))
    # If this fails, vLLM starts its core in another environment than setup/openmp.py predicts, or in another way.
    assert given == [True] or openmp_environment() is None
    pids = engine.process_ids
    threads, raised = run_in_threads(engine, callers=3)
    core_of(engine).kill()
    killed = time.monotonic()
    for thread in threads:
        thread.join(timeout=20)
    assert not any(thread.is_alive() for thread in threads)
    assert time.monotonic() - killed < 10
    assert [type(e) for e in raised] == [EngineDiedError] * 3
    assert "unanswered" in str(raised[0])
    assert "vLLM's core was killed by signal 9 (SIGKILL)" in str(raised[0])
    assert engine.is_over
    engine.stats().check()
    with pytest.raises(EngineDiedError):
        engine.run([Request("anyone there?")])
    engine.close()
    assert wait_gone(pids) == []


def test_an_interrupt_then_a_stopped_core_is_noticed_and_does_not_start_again(
    tiny: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = OfflineEngine(EngineConfig(tiny, TINY_ARGS))
    engine.set_limits(stall_timeout=4.0, max_restarts=2)
    pids = engine.process_ids

    # A caller that is interrupted (Ctrl-C) gives up its rows. The engine continues for the other callers.
    def interrupt() -> None:
        while not engine.stats().in_flight:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    # If a shell has started this process in the background, it ignores interrupts. So the handler is set here.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        engine.run([Request(f"story {i}", sampling=LONG) for i in range(400)])
    signal.signal(signal.SIGINT, before)
    assert engine.run([Request("hello", sampling=SamplingOptions(max_tokens=2))])[0].completion_tokens == 2
    stats = engine.stats()
    stats.check()
    assert stats.abandoned > 0
    assert stats.in_flight == stats.pending == 0

    starts: list[object] = []

    def start(config: EngineConfig, watch: StepWatch, before: list[psutil.Process]) -> Core:
        starts.append(config.engine_args["max_model_len"])
        raise EngineStartError("the GPU has fallen off the bus")

    monkeypatch.setattr(Core, "start", start)
    monkeypatch.setattr("daft_vllm.engine.process.thread.RESTART_SECONDS", 0.01)
    threads, raised = run_in_threads(engine, callers=1)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    threads[0].join(timeout=30)
    assert not threads[0].is_alive()
    assert isinstance(raised[0], EngineDiedError)
    assert "no step for 4 seconds" in caplog.text
    assert "killed by signal" not in caplog.text, "it was killed because it made no step"
    assert "could not be started again: the GPU has fallen off the bus" in str(raised[0])
    assert starts == [512, 512]
    engine.stats().check()
    engine.close()
    engine.close()
    assert wait_gone(pids) == []
    with pytest.raises((EngineDiedError, EngineClosedError)):
        engine.run([Request("closed")])


TWICE = """
import json, sys
from daft_vllm import EngineConfig, OfflineEngine
from vllm import ModelRegistry
ModelRegistry.register_model("OwnForCausalLM", "own_models:OwnForCausalLM")
def overrides(config):
    return config
print("once")
OfflineEngine(EngineConfig(sys.argv[1], {**json.loads(sys.argv[2]), "hf_overrides": overrides})).close()
"""


def test_a_script_that_would_run_twice_is_told_what_to_write(tiny: str, tmp_path: Path) -> None:
    """vLLM's core imports a script only if it registers a model."""
    script = tmp_path / "twice.py"
    script.write_text(TWICE, encoding="utf-8")
    command = [sys.executable, str(script), tiny, json.dumps(TINY_ARGS)]
    environment = {name: value for name, value in os.environ.items() if name != "VLLM_LOGGING_LEVEL"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.stdout == "once\n"
    assert 'Write `if __name__ == "__main__":` above' in done.stderr.splitlines()[-2]
    assert "The log of vLLM is" in done.stderr.splitlines()[-1]
    assert len(done.stderr.splitlines()) < 20, done.stderr
    script.write_text(re.sub("(?m)^.*ModelRegistry.*\n", "", TWICE), encoding="utf-8")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert (done.returncode, done.stdout) == (0, "once\n"), done.stderr


OWNER = """
import json, sys, time
from daft_vllm import EngineConfig, OfflineEngine, Request, SamplingOptions
if __name__ == "__main__":
    engine = OfflineEngine(EngineConfig(sys.argv[1], json.loads(sys.argv[3])))
    print("PIDS", *engine.process_ids, flush=True)
    if sys.argv[2] == "exit":
        engine.run([Request("hello", sampling=SamplingOptions(max_tokens=4))])
        raise SystemExit("an exception with the engine open")
    engine.run([Request(str(i), sampling=SamplingOptions(max_tokens=400, ignore_eos=True)) for i in range(3000)])
"""


@pytest.mark.parametrize("how", ["exit", "kill"])
def test_no_process_is_left_when_the_owner_ends(tiny: str, tmp_path: Path, how: str) -> None:
    """Neither after an exception at top level, which causes no other error messages, nor after a kill at work."""
    script = tmp_path / "owner.py"
    script.write_text(OWNER, encoding="utf-8")
    with (tmp_path / "stderr").open("w") as stderr:
        owner = subprocess.Popen(
            [sys.executable, str(script), tiny, how, json.dumps(TINY_ARGS)],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    assert owner.stdout is not None
    pids = next([int(pid) for pid in line.split()[1:]] for line in owner.stdout if line.startswith("PIDS"))
    assert pids
    if how == "kill":
        time.sleep(1.0)
        owner.kill()
    owner.wait(timeout=30)
    assert wait_gone(pids) == []
    if how == "exit":
        said = (tmp_path / "stderr").read_text()
        assert "an exception with the engine open" in said
        for complaint in ("Task was destroyed", "exited unexpectedly", "leaked"):
            assert complaint not in said


def test_a_model_that_does_not_load_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["NoSuchModel"], "model_type": "llama"}')
    before = psutil.Process().children(recursive=True)
    with pytest.raises(EngineStartError, match="did not start"):
        OfflineEngine(EngineConfig(str(tmp_path), {"max_model_len": 128}))
    left = [p.pid for p in psutil.Process().children(recursive=True) if p not in before]
    assert wait_gone(left, 0) == []


def test_python_ends_without_waiting_for_a_load() -> None:
    """Ctrl-C ends the main thread. Then Python waits for threads of executors, in which Daft runs coroutines."""
    code = textwrap.dedent("""
        import sys, threading, time
        from concurrent.futures import ThreadPoolExecutor
        from daft_vllm import EngineConfig
        from daft_vllm.engine.process import group, thread

        loading = threading.Event()

        def load(*given):
            loading.set()
            time.sleep(3600)

        thread.Core.start = load
        started = ThreadPoolExecutor().submit(group.EngineGroup(EngineConfig("m", gpus=0)).start)
        started.add_done_callback(lambda future: print(repr(future.exception())))
        loading.wait()
        raise KeyboardInterrupt
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "EngineClosedError('Python is ending: the main thread was interrupted" in done.stdout
