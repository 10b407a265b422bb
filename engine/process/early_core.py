"""Starts vLLM's core process before this process imports vLLM, so that the two imports run side by side.

A core that vLLM starts itself begins by importing vLLM and torch, after its parent has just done the same. That takes 6
of the 18 seconds from nothing to a loaded SmolLM2-135M, on two cores. The process that is started here is the same
Python. It imports first, and then reads what ``multiprocessing`` has for it to run. It is used if everything that a
process takes over at its start is still the same by then. Otherwise it is ended, and vLLM starts its core itself.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import Pipe, popen_spawn_posix, resource_tracker, spawn, util
from multiprocessing.context import SpawnContext, SpawnProcess, set_spawning_popen
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any, TypeVar

import psutil

from daft_vllm.engine.patches.front_end import Run, replace_launches
from daft_vllm.engine.process.early_main import SET_BY_VLLM
from daft_vllm.engine.process.main_module import without_main
from daft_vllm.engine.setup.environment import core_environment, environment_variables, others_may_start
from daft_vllm.engine.setup.guardian import NewProcesses, kill_processes
from daft_vllm.engine.setup.log import LogFile
from daft_vllm.engine.setup.openmp import openmp_environment

logger = logging.getLogger("daft_vllm")

T = TypeVar("T")

_util: Any = util  # most of it is private to multiprocessing

_READ_AT_START = ("GLIBC_", "GOMP_", "KMP_", "LD_PRELOAD", "MALLOC_", "MKL_", "OMP_", "OPENBLAS_", "PYTHON")
"""Prefixes of the names of variables that a process reads when it starts, or when it loads torch. Other variables may
still change: vLLM reads its own when it needs them, and CUDA when a GPU is first used. ``LD_LIBRARY_PATH`` is not here
because the import of cv2 sets it."""

_MODULES = ("vllm.v1.engine.core", "daft_vllm.engine.patches.either_backend")
_CPU_WORKER, _GPU_WORKER = "vllm.v1.worker.cpu_worker", "vllm.v1.worker.gpu_worker"


class EarlyProcess:
    """A Python process that imports modules, and then waits until it becomes a process of ``multiprocessing``.

    It is a child of the thread that creates this object, and ends with that thread.

    Args:
        modules: names of the modules that it imports.
        open_files: file descriptors that it inherits.
        log: file descriptor of the file that gets its stdout and stderr. None: they are this process's.
    """

    def __init__(self, modules: Sequence[str], open_files: Sequence[int] = (), log: int | None = None) -> None:
        self._environment = dict(os.environ)
        self._executable = spawn.get_executable()
        self._given = False
        tracker: Any = resource_tracker.getfd()
        self.sentinel, child_sentinel = os.pipe()
        orders, self._orders = Pipe(duplex=False)
        self._answers, answers = Pipe(duplex=False)
        passed = [child_sentinel, orders.fileno(), answers.fileno(), tracker, *open_files]
        passed += [log] if log is not None else []
        program = (
            f"import sys; sys.path[:] = {[*map(str, sys.path)]!r}; "
            "from daft_vllm.engine.process.early_main import main; "
            f"main({[*modules]!r}, {os.getpid()}, {orders.fileno()}, {answers.fileno()}, {tracker}, {log})"
        )
        flags = _util._args_from_interpreter_flags()
        # multiprocessing recognizes its processes by the last argument.
        command = [self._executable, *flags, "-c", program, "--multiprocessing-fork"]
        try:
            self.pid: int = _util.spawnv_passfds(os.fsencode(self._executable), command, passed)
        except BaseException:
            self.close_files()
            raise
        finally:
            os.close(child_sentinel)
            orders.close()
            answers.close()
        self.process = psutil.Process(self.pid)

    def call(self, function: Callable[[], T]) -> T:
        """Call ``function`` in the process, after its imports, and return the result.

        Raises:
            EOFError, OSError: the process is dead.
            RuntimeError: the function raised.
        """
        import cloudpickle

        self._orders.send(cloudpickle.dumps(function))
        returned, answer = self._answers.recv()
        if not returned:
            raise RuntimeError(f"in a process started early:\n{answer}")
        result: T = pickle.loads(answer)
        return result

    def give(self, task: memoryview) -> bool:
        """Send the process what ``multiprocessing`` has pickled, and the environment as it is now.

        Returns:
            True if it was sent. False if the process is dead, or if a process that is started now would differ from it.
        """
        then, now = self._environment, dict(os.environ)
        changed = {name: now.get(name) for name in {*then, *now} if then.get(name) != now.get(name)}
        if now.get(SET_BY_VLLM) == "1":  # the process sets torch's threads when it takes over the environment
            then["OMP_NUM_THREADS"] = now["OMP_NUM_THREADS"]
        late = [name for name in changed if name.startswith(_READ_AT_START) and then.get(name) != now.get(name)]
        if late or self._executable != spawn.get_executable():
            logger.debug("the early process can't be used after a change of %s", ", ".join(late) or "Python's path")
            return False
        try:
            self._orders.send(changed)
            with open(self._orders.fileno(), "wb", closefd=False) as pipe:
                pipe.write(task)
        except OSError:
            return False
        self._given = True
        return True

    def close_files(self) -> None:
        """Close this process's ends of the pipes."""
        os.close(self.sentinel)
        self._orders.close()
        self._answers.close()

    def close(self) -> None:
        """End the process, unless ``give`` has sent it something to run."""
        if not self._given:
            self.close_files()
            kill_processes([self.process])


@dataclass
class CoreStart:
    """The start of one core, in the thread that starts it.

    Attributes:
        log: gets the core's stdout and stderr.
        begin: the size of the log when the start began.
        processes: those that it starts.
        early: the process that becomes the core. None: one is started when vLLM asks for it.
        core: the core, once it is started.
    """

    log: LogFile
    begin: int
    processes: NewProcesses
    early: EarlyProcess | None = None
    core: _Popen | None = None

    def new_process(self, modules: Sequence[str], open_files: Sequence[int] = ()) -> EarlyProcess:
        """Start a process. Arguments as in ``EarlyProcess``."""
        started = EarlyProcess(modules, open_files, self.log.fd)
        self.processes.own.append(started.process)
        return started

    def written(self) -> str:
        """Return what was written to the log since the start began, or the end of that."""
        return self.log.read(self.begin)

    def exit_code(self, seconds: float = 1.0) -> int | None:
        """Wait until the core ends. Return its exit code, negative for a signal. None: it runs, or was not started."""
        code: int | None = self.core.wait(seconds) if self.core is not None else None
        return code


class _Popen(popen_spawn_posix.Popen):
    _fds: list[int]

    def _launch(self, process_obj: BaseProcess) -> None:
        start: CoreStart | None = getattr(_this_thread, "start", None)
        if start is None:  # the core of an engine that isn't ours
            super()._launch(process_obj)  # type: ignore[misc]
            return
        task, open_files = self._pickled(process_obj)
        early = start.early
        if early is None or open_files or not early.give(task):  # a process gets open files only when it starts
            early = start.new_process([], open_files)
            if not early.give(task):
                early.close()
                raise OSError("a new Python process ended at once")
        else:
            start.early = None
        self.pid, self.sentinel = early.pid, early.sentinel
        self.finalizer = _util.Finalize(self, early.close_files)
        start.core = self

    def _pickled(self, process_obj: BaseProcess) -> tuple[memoryview, list[int]]:
        """Return what the process gets to run, and the file descriptors that it inherits.

        It imports the script's main module only if it has to.
        """
        main, work = io.BytesIO(), io.BytesIO()
        set_spawning_popen(self)
        try:
            ForkingPickler(work).dump(process_obj)
            data = without_main(spawn.get_preparation_data(process_obj.name), work.getvalue())
            ForkingPickler(main).dump(data)
        finally:
            set_spawning_popen(None)
        open_files, self._fds = self._fds, []
        return memoryview(main.getvalue() + work.getvalue()), open_files


class _Process(SpawnProcess):
    @staticmethod
    def _Popen(process_obj: BaseProcess) -> _Popen:
        return _Popen(process_obj)


class EarlyContext(SpawnContext):
    """The context "spawn" of ``multiprocessing``, in which a new process uses what its thread has for a core."""

    Process = _Process


_this_thread = threading.local()


@contextlib.contextmanager
def core_start(log: LogFile, processes: NewProcesses | None = None) -> Iterator[CoreStart]:
    """Let this thread start a core inside, with ``EarlyContext``.

    Args:
        log: gets the core's stdout and stderr.
        processes: gets the processes that are started. None: nobody needs to know.
    """
    start = _this_thread.start = CoreStart(log, log.size(), processes or NewProcesses())
    try:
        yield start
    finally:
        _this_thread.start = None
        if start.early is not None:
            start.early.close()
        start.early = None


def start_early(start: CoreStart, modules: Sequence[str]) -> None:
    """Start a process that imports ``modules``. The first process that ``start``'s thread starts then uses it."""
    start.early = start.new_process(modules)


def start_core_early(start: CoreStart, *, cpu: bool, in_core: bool, reproducible: bool = False) -> None:
    """Start a core early, for the engine that this thread starts, after ``take_early_core``.

    Args:
        start: the start of the engine.
        cpu: whether the engine runs on a CPU.
        in_core: whether the model will be in the core's process, and not in workers.
        reproducible: as in ``EngineConfig``.
    """
    openmp: dict[str, str] | None = {}
    if cpu:  # vLLM binds the threads of a core without the model, and of its workers, in another way
        openmp = openmp_environment() if in_core else None
    if openmp is None:
        return
    worker = [_CPU_WORKER if cpu else _GPU_WORKER] if in_core else []
    with core_environment(cpu=cpu, reproducible=reproducible), environment_variables(openmp):
        start_early(start, [*_MODULES, *worker])


def take_early_core() -> None:
    """Let vLLM use the early process of the thread that starts a core. vLLM has to be imported already.

    If vLLM's cache doesn't know the model's class, vLLM first uses the process to look at the class. vLLM itself would
    start one more process for that, which would import vLLM again. Then the process becomes the core.
    """

    def run_early(original: Run) -> Run:
        def run(function: Callable[[], Any]) -> Any:
            start: CoreStart | None = getattr(_this_thread, "start", None)
            if start is not None and start.early is not None:
                with contextlib.suppress(EOFError, OSError):  # it is dead
                    return start.early.call(partial(with_plugins, function))
            return original(function)

        return run

    replace_launches(lambda chosen: EarlyContext(), run_early, others_may_start)


def with_plugins(function: Callable[[], T]) -> T:
    """Call a function as vLLM's own processes do: with its plugins, which may register models."""
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    return function()
