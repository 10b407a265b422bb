"""A pool of decoder processes. They start when they are needed, can be killed, and end with their owner."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from daft_vllm.children import START_SECONDS, start_child
from daft_vllm.engine.media.decoder_main import MEMORY_EXIT, OUT_OF_MEMORY
from daft_vllm.engine.media.exchange import Exchange, parts_of, shared_memory
from daft_vllm.engine.media.limits import Budget
from daft_vllm.engine.requests.media import MediaError

T = TypeVar("T")
_MODULE = "daft_vllm.engine.media.decoder_main"
_PROCESSES = min(8, max(4, os.cpu_count() or 1))
"""How many files are decoded at once. Each may take the memory that its budget says."""
_AT_ONCE = min(_PROCESSES, max(2, os.cpu_count() or 1))
"""How many of them may be in their first ``_SOON`` seconds. More processes than cores only disturb one another, but
files that take long must not hold up the others."""
_SOON = 0.5
_STALL_SECONDS = 10
"""How long a decoder may stop in the middle of an answer."""
_ENVIRONMENT = ("PATH", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "HOME")
"""The variables that a decoder inherits, with vLLM's own. The others may hold secrets, and a decoder reads files of
strangers."""


class _Decoder:
    """One decoder process. For one thread at a time."""

    def __init__(self) -> None:
        inherited = {
            name: value for name, value in os.environ.items() if name in _ENVIRONMENT or name.startswith("VLLM_")
        }
        memory = shared_memory()
        self.process, connection = start_child(
            _MODULE, {**inherited, "OMP_NUM_THREADS": "1"}, files=[memory], stall_seconds=_STALL_SECONDS
        )
        self._exchange = Exchange(connection, memory)
        self._is_ready = False
        self._timed_out = False

    def decode(
        self,
        task: str,
        data: bytes,
        budget: Budget,
        arguments: dict[str, Any],
        collect: Callable[[dict[str, Any], Iterator[memoryview]], T],
        takes_long: Callable[[], None],
    ) -> T:
        """Return what ``collect`` makes of the answer: its header, and its parts.

        ``takes_long`` is called if there is no answer soon.

        Raises:
            MediaError: the file can't be decoded, or not within its limits.
            EOFError: the process has died. ``error`` says why.
        """
        self._wait_until_ready()
        with budget.spend() as seconds:
            try:
                request = {"task": task, "seconds": seconds, "memory": budget.memory, "arguments": arguments}
                self._exchange.send(request, parts_of(data))
                if not self._exchange.wait(min(seconds, _SOON)):
                    takes_long()
                    if not self._exchange.wait(seconds - _SOON):
                        self._timed_out = True
                        raise EOFError
                answer, parts = self._exchange.receive()
                if "error" in answer:
                    code, message = answer["error"]
                    raise budget.too_large() if code == OUT_OF_MEMORY else MediaError(code, message)
                return collect(answer, parts)
            except OSError as e:
                raise EOFError from e

    def _wait_until_ready(self) -> None:
        if self._is_ready:
            return
        try:
            if self._exchange.wait(START_SECONDS):
                self._is_ready = self._exchange.receive()[0]["is_ready"]
        except (EOFError, OSError):
            pass
        if not self._is_ready:
            self.kill()
            raise MediaError(
                "unavailable_media",
                f"the process that decodes files did not start (exit code {self.process.returncode}): run "
                f"`python -c 'import {_MODULE}'` to see why",
            )

    def error(self, budget: Budget) -> MediaError:
        """Return why this process, which has died or hangs, did not decode its file. It is ended."""
        if not self._timed_out:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_STALL_SECONDS)  # for its exit code
        self.kill()
        code = self.process.returncode
        if self._timed_out:
            return budget.too_slow()
        if code == MEMORY_EXIT:
            return budget.too_large()
        return MediaError(
            "invalid_media",
            f"the process that decoded it has died ({_how(code)}): it is broken, or takes more than "
            f"{budget.memory >> 20} MiB of memory (files=FileAccess(max_memory=...))",
        )

    def kill(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        self._exchange.close()


class DecoderPool:
    """A pool of decoder processes. Any number of threads may use it.

    Args:
        processes: the most processes.
    """

    def __init__(self, processes: int = _PROCESSES) -> None:
        self._processes = processes
        self._begin()

    def _begin(self) -> None:
        """Begin without any process. A fork does so too: the processes are its parent's."""
        self._turn = threading.Semaphore(self._processes)
        self._beginning = threading.Semaphore(min(self._processes, _AT_ONCE))
        self._lock = threading.Lock()
        self._idle: list[_Decoder] = []
        self._all: set[_Decoder] = set()

    def decode(
        self,
        task: str,
        data: bytes,
        budget: Budget,
        arguments: dict[str, Any],
        collect: Callable[[dict[str, Any], Iterator[memoryview]], T],
    ) -> T:
        """Decode a file in one of the processes, and return what ``collect`` makes of the answer.

        Args:
            task: one of ``decoder_main.TASKS``.
            data: the file.
            budget: what it may cost.
            arguments: further arguments of the task.
            collect: gets the answer's header and its parts, of which it takes all.

        Raises:
            MediaError: the file can't be decoded, or not within its limits.
        """
        with self._turn, contextlib.ExitStack() as beginning:
            beginning.enter_context(self._beginning)
            decoder = self._taken()
            try:
                result = decoder.decode(task, data, budget, arguments, collect, beginning.close)
            except EOFError:
                self._forget(decoder)
                raise decoder.error(budget) from None
            except MediaError:
                self._give_back(decoder)
                raise
            except BaseException:
                self._forget(decoder)
                decoder.kill()  # its answer was not read to the end
                raise
            self._give_back(decoder)
            return result

    def close(self) -> None:
        """End all processes."""
        with self._lock:
            decoders, self._all = self._all, set()
            self._idle.clear()
        for decoder in decoders:
            decoder.kill()

    def _taken(self) -> _Decoder:
        with self._lock:
            while self._idle:
                decoder = self._idle.pop()
                if decoder.process.poll() is None:
                    return decoder
                self._all.discard(decoder)  # somebody else has ended it
            decoder = _Decoder()
            self._all.add(decoder)
            return decoder

    def _give_back(self, decoder: _Decoder) -> None:
        with self._lock:
            if decoder in self._all:
                self._idle.append(decoder)

    def _forget(self, decoder: _Decoder) -> None:
        with self._lock:
            self._all.discard(decoder)


def _how(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


POOL = DecoderPool()
"""The processes of this process."""
atexit.register(POOL.close)
os.register_at_fork(after_in_child=POOL._begin)
