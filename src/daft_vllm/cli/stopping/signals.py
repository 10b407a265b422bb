"""Ctrl-C, SIGTERM and a terminal that is closed: the job stops, its answers are kept, and nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

import psutil

from daft_vllm.cli.terminal import console
from daft_vllm.engine.setup.guardian import kill_processes
from daft_vllm.engine.setup.log import log_file
from daft_vllm.folders import RUN_PREFIX, held_folder, remove_passing_folders
from daft_vllm.udf.worker.leaving import HANDLES_SIGNALS

DRAIN_SECONDS = {signal.SIGINT: 10.0, signal.SIGTERM: 15.0, signal.SIGHUP: 15.0}
"""How long rows inside vLLM may take to finish after a signal. Kubernetes kills 30 s after SIGTERM; closing
vLLM takes up to 5 s more, and cleaning up as long."""
_CLEAN_SECONDS = 5.0
"""How long cleaning up may take before the process ends in any case."""


class SignalHandler:
    """Ends this process after a signal inside the ``with`` block, with 128 and the signal's number as exit status.

    The first signal stops the query: vLLM gets no more rows, and those inside it may finish if their answers are kept.
    If the query ends well before that, the job does too. A second signal ends the process at once.

    Attributes:
        folder: a temporary folder for the counters of the query, by which it is stopped.
        keeps_answers: whether it is worth waiting for rows inside vLLM.
        cleaners: called before the process ends, in this order. They may raise.
        last_words: returns what is said at the end.
    """

    def __init__(self) -> None:
        self._held = contextlib.ExitStack()
        self.folder = self._held.enter_context(held_folder(RUN_PREFIX))
        self.keeps_answers = False
        self.cleaners: list[Callable[[], object]] = []
        self.last_words: Callable[[], str] = lambda: ""
        self._number: signal.Signals | None = None
        self._before: dict[signal.Signals, signal._HANDLER] = {}
        self._ending = threading.Lock()

    def __enter__(self) -> SignalHandler:
        if threading.current_thread() is threading.main_thread():  # only there Python takes handlers
            for number in DRAIN_SECONDS:
                # A background job of a shell script ignores Ctrl-C, and one under nohup SIGHUP. But Daft 0.7 takes
                # Ctrl-C in any case, and ends the query without an error and without rows.
                if number is signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._on_signal)
            os.environ[HANDLES_SIGNALS] = str(os.getpid())
        return self

    def install_again(self) -> None:
        """Put back the handlers that others have replaced since. Ray does, when it is imported."""
        for number in self._before:
            signal.signal(number, self._on_signal)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._number is not None and kind is not None:
            threading.Event().wait()  # the query has stopped: the thread that stopped it ends the process
        self._ending.acquire()  # for good: from here on the process ends by itself, unless it is being ended
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.environ.pop(HANDLES_SIGNALS, None)
        self._held.close()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        first = self._number is None
        if first:
            self._number = signal.Signals(number)
        # In another thread: the main one may wait in the query, or hold a lock.
        threading.Thread(target=self._stop if first else self._end, name="daft-vllm-signal", daemon=True).start()

    def _stop(self) -> None:
        from daft_vllm.udf.worker.stopping import stop_query

        assert self._number is not None
        seconds = DRAIN_SECONDS[self._number] if self.keeps_answers else 0.0
        try:
            if seconds:
                again = " Ctrl-C again stops at once." if self._number is signal.SIGINT else ""
                with contextlib.suppress(OSError):  # a terminal that is gone
                    console.print(f"stopping: rows inside vLLM may finish, for up to {seconds:.0f} seconds.{again}")
            stop_query(self.folder, seconds)
        finally:
            self._end()

    def _end(self) -> None:
        assert self._number is not None
        self._ending.acquire()  # for good: only one thread ends the process
        status = 128 + self._number
        timer = threading.Timer(_CLEAN_SECONDS, os._exit, [status])
        timer.daemon = True
        timer.start()
        for clean in (_close_engines, _kill_children, *self.cleaners, self._remove_files):
            with contextlib.suppress(Exception):
                clean()
        with contextlib.suppress(Exception):
            name = "Ctrl-C" if self._number is signal.SIGINT else self._number.name
            console.print(f"stopped by {name}. {self.last_words()}".rstrip(), highlight=False, soft_wrap=True)
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)

    def _remove_files(self) -> None:
        from multiprocessing import util

        self._held.close()
        remove_passing_folders()
        log_file().remove()
        util._run_finalizers(0)  # type: ignore[attr-defined]  # they remove sockets of Daft's processes


def _close_engines() -> None:
    """Close the engines of this process, so that none of them is started again after its processes are killed."""
    from daft_vllm.udf.worker.engines import open_engines

    for engine in open_engines():
        engine.close(0.0)


def _kill_children() -> None:
    """Kill all processes that this one has started. Python's resource trackers then remove what these have left."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        ray.shutdown()
    children = []
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if "resource_tracker" not in " ".join(process.cmdline()):
                children.append(process)
    kill_processes(children)
