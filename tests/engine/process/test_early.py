"""A process that is started early, before it has anything to do, and becomes a process of ``multiprocessing``."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from daft_vllm.engine.process.early_core import (
    EarlyContext,
    EarlyProcess,
    core_start,
    start_core_early,
    start_early,
    take_early_core,
)
from daft_vllm.engine.process.early_main import SET_BY_VLLM, gc_disabled, gc_frozen
from daft_vllm.engine.process.main_module import refuse_process, without_main
from daft_vllm.engine.setup.log import log_file
from daft_vllm.engine.setup.openmp import openmp_environment
from daft_vllm.errors import EngineStartError
from tests.helpers import wait_gone


@contextlib.contextmanager
def early_process(modules: Sequence[str]) -> Iterator[EarlyProcess]:
    """Start a process early, for the first process that this thread starts inside."""
    with core_start(log_file()) as start:
        start_early(start, modules)
        assert start.early is not None
        yield start.early


def became(early: EarlyProcess, target: Callable[..., Any], *args: Any) -> bool:
    """Run a function in a process of the context. Return whether that was the early process."""
    process = EarlyContext().Process(target=target, args=args)
    process.start()
    process.join(60)
    assert process.exitcode == 0
    return process.pid == early.pid


def test_it_becomes_the_next_process_in_the_environment_of_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOES", "1")
    with early_process(["a module that is not there", "xml.dom"]) as early:
        monkeypatch.setenv("COMES", "the ☃ of now")
        monkeypatch.delenv("GOES")
        write = f'echo "$COMES$GOES" > {tmp_path}/found'
        assert became(early, os.system, write)
        assert (tmp_path / "found").read_text() == "the ☃ of now\n"
        assert not became(early, os.system, write), "the second"
    assert wait_gone([early.pid]) == []


def test_it_calls_functions_meanwhile() -> None:
    with early_process([]) as early:
        assert early.call(os.getpid) == early.pid
        assert early.call(lambda: dict.fromkeys(range(100_000), "x" * 10)) == dict.fromkeys(range(100_000), "x" * 10)
        with pytest.raises(RuntimeError, match=r"(?s)started early.*ZeroDivisionError"):
            early.call(lambda: 1 // 0)
        assert became(early, time.time)


def test_ctrl_c_is_for_its_parent_only() -> None:
    """A terminal and a notebook interrupt the parent's process group."""
    with early_process([]) as early:
        assert early.call(os.getpgrp) == early.pid != os.getpgrp()


def test_a_dead_one_calls_nothing() -> None:
    with early_process([]) as early:
        os.kill(early.pid, signal.SIGKILL)
        with pytest.raises((EOFError, OSError)):
            early.call(os.getpid)


def test_an_exit_code_comes_through() -> None:
    with early_process([]) as early:
        process = EarlyContext().Process(target=sys.exit, args=(3,))
        process.start()
        process.join(60)
    assert (process.pid, process.exitcode) == (early.pid, 3)


def test_it_is_left_where_a_process_would_start_otherwise_now(monkeypatch: pytest.MonkeyPatch) -> None:
    with early_process([]) as early:
        monkeypatch.setenv("OMP_PROC_BIND", "close")
        assert not became(early, time.time)
        with Pipe()[0] as open_file, Pipe()[0]:
            monkeypatch.delenv("OMP_PROC_BIND")
            assert not became(early, Connection.fileno, open_file)
    assert wait_gone([early.pid], 0) == []


def test_a_dead_one_is_replaced() -> None:
    with early_process([]) as early:
        os.kill(early.pid, signal.SIGKILL)
        psutil.Process(early.pid).wait()
        assert not became(early, time.time)


def test_it_belongs_to_its_thread() -> None:
    from concurrent.futures import ThreadPoolExecutor

    with early_process([]) as early, ThreadPoolExecutor() as pool:
        assert not pool.submit(became, early, time.time).result()


def test_threads_that_vllm_chose_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On GPUs vLLM sets ``OMP_NUM_THREADS`` right before it starts a core. By then torch in the core has read it."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with early_process(["torch"]) as early:
        monkeypatch.setenv("OMP_NUM_THREADS", "3")
        monkeypatch.setenv(SET_BY_VLLM, "1")
        assert became(early, _write_threads, tmp_path / "found")
    assert (tmp_path / "found").read_text() == "3"


def _write_threads(path: Path) -> None:
    import torch

    path.write_text(str(torch.get_num_threads()))


def test_it_ends_with_its_parent() -> None:
    code = (
        "from daft_vllm.engine.process.early_core import EarlyProcess\n"
        "if __name__ == '__main__':\n"
        "    import os; print(EarlyProcess([]).pid, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert wait_gone([int(done.stdout)]) == []
    assert done.stderr == ""


def test_vllm_has_it_look_at_a_models_class(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """vLLM's cache is empty. If this fails, vLLM looks at the class in another way, and a first start takes longer."""
    import vllm.model_executor.models.registry as registry

    def elsewhere(*args: Any, **options: Any) -> None:
        raise InterruptedError

    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path))
    take_early_core()
    monkeypatch.setattr(subprocess, "run", elsewhere)
    model = registry.ModelRegistry.models["LlamaForCausalLM"]
    with early_process(["vllm.v1.engine.core"]) as early:
        assert model.inspect_model_cls().is_text_generation_model
        assert became(early, time.time)
    with early_process([]) as early:
        os.kill(early.pid, signal.SIGKILL)
        with pytest.raises(InterruptedError):
            registry.ModelRegistry.models["MistralForCausalLM"].inspect_model_cls()


def test_none_where_it_cannot_be_told_how_vllm_binds_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")
    assert openmp_environment() is None
    before = psutil.Process().children()
    with core_start(log_file()) as start:
        start_core_early(start, cpu=True, in_core=True)
        assert start.early is None
        assert psutil.Process().children() == before
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND")
    monkeypatch.setenv("VLLM_CPU_NUM_OF_RESERVED_CPU", "none")
    assert openmp_environment() is None
    monkeypatch.setenv("VLLM_CPU_NUM_OF_RESERVED_CPU", "0")
    with monkeypatch.context() as patch:
        patch.setenv("PATH", "")
        assert openmp_environment() is None
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/libiomp5.so")
    assert openmp_environment() is None


@pytest.mark.parametrize("reserved", ["0", "1"])
@pytest.mark.parametrize("preloads", [True, False])
def test_threads_as_vllm_binds_them(monkeypatch: pytest.MonkeyPatch, reserved: str, preloads: bool) -> None:
    """vLLM's own class sets the same variables. vLLM's platform sets ``LD_PRELOAD``: an engine's test covers that."""
    from vllm import envs
    from vllm.utils.ompmultiprocessing import OMPProcessManager

    envs.disable_envs_cache()  # an engine of this process may have turned it on
    monkeypatch.setenv("VLLM_CPU_NUM_OF_RESERVED_CPU", reserved)
    if not preloads:
        monkeypatch.setattr("daft_vllm.engine.setup.openmp._preload", lambda: "")
    told = openmp_environment()
    assert told is not None
    monkeypatch.setenv("LD_PRELOAD", told.pop("LD_PRELOAD", ""))
    parallel = SimpleNamespace(local_world_size=1, data_parallel_rank_local=None, _api_process_count=1)
    manager = OMPProcessManager(SimpleNamespace(parallel_config=parallel, kv_transfer_config=None))
    with manager.configure_omp_envs(rank=0, local_rank=0):
        assert told == {name: value for name, value in os.environ.items() if name.startswith(("OMP_", "GOMP_"))}


def test_collections_leave_imports_alone() -> None:
    assert gc.get_freeze_count() < 1000
    with gc_frozen():
        assert gc.get_freeze_count() > 1000
        with gc_frozen():
            pass
        assert gc.get_freeze_count() > 1000
    assert gc.get_freeze_count() < 1000


def test_imports_without_collections() -> None:
    assert gc.isenabled()
    with gc_disabled():
        assert not gc.isenabled()
        with gc_disabled():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_its_title_can_be_set_whatever_became_of_its_variables() -> None:
    script = textwrap.dedent("""
        import os, setproctitle
        from daft_vllm.engine.process.early_main import init_process_title

        init_process_title()
        os.environ["FIRST"] = "x" * 100
        setproctitle.setproctitle("VLLM::EngineCore")
        print(open("/proc/self/cmdline").read().rstrip(chr(0)))
    """)
    done = subprocess.run(
        [sys.executable, "-c", script], env={"FIRST": "1", **os.environ}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "VLLM::EngineCore"


def test_a_new_process_imports_the_script_only_if_it_has_to(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("from vllm import SamplingParams")
    other = {"name": "EngineCore", "sys_argv": ["x"]}
    harmless, by_reference, by_value = (
        pickle.dumps(os.getcwd),
        b"c__main__\nf\n.",
        pickle.dumps(b"c__main__\nf\n."),
    )
    for work, path, imported in (
        (harmless, script, False),
        (by_reference, script, True),
        (by_value, script, False),
        (by_reference, tmp_path / "<stdin>", False),
    ):
        told = without_main({**other, "init_main_from_path": str(path)}, work)
        assert told == {**other, **({"init_main_from_path": str(path)} if imported else {})}
    assert without_main({**other, "init_main_from_name": "package.main"}, harmless) == other
    assert without_main({**other, "init_main_from_name": "package.main"}, by_reference) != other


def test_a_new_process_imports_the_script_if_models_are_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever registers them: the script, a module that it imports, or a package that is run with ``-m``."""
    from vllm import ModelRegistry

    class Own:
        module_name = "of_the_user.models"

    script = tmp_path / "script.py"
    script.write_text("import of_the_user")
    work = pickle.dumps(os.getcwd)
    told = ({"init_main_from_path": str(script)}, {"init_main_from_name": "of_the_user.__main__"})
    assert [without_main(main, work) for main in told] == [{}, {}]
    monkeypatch.setitem(ModelRegistry.models, "OwnForCausalLM", Own())
    assert [without_main(main, work) for main in told] == list(told)
    assert without_main({"init_main_from_path": str(tmp_path / "<stdin>")}, work) == {}
    plugin = SimpleNamespace(module="of_the_user.plugin")
    monkeypatch.setattr("daft_vllm.engine.process.main_module.entry_points", lambda group: [plugin])
    assert [without_main(main, work) for main in told] == [{}, {}], "the new process loads plugins itself"


def test_a_daemon_is_refused_before_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_process()
    monkeypatch.setattr(multiprocessing.current_process(), "_config", {"daemon": True})
    with pytest.raises(EngineStartError, match=r"worker of multiprocessing\.Pool, may not: use concurrent\.futures"):
        refuse_process()
