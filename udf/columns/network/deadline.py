"""The time that one file may take, and what ends its connections then."""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

from daft_vllm.engine.requests.media import MediaError
from daft_vllm.giving_up import within
from daft_vllm.wording import counted, shown

_T = TypeVar("_T")


class _Watchdog:
    """Ends deadlines when their time is over, from one thread: a thread for each file would cost more than the file."""

    def __init__(self) -> None:
        self.watched: dict[Deadline, float] = {}
        self._changed = threading.Condition()
        self._wakes = math.inf
        self._thread: threading.Thread | None = None

    def add(self, deadline: Deadline, until: float) -> None:
        """End ``deadline`` at the time ``until``, of ``time.monotonic()``."""
        with self._changed:
            self.watched[deadline] = until
            if self._thread is None or not self._thread.is_alive():  # a fork has none
                self._thread = threading.Thread(target=self._run, name="daft-vllm-deadlines", daemon=True)
                self._thread.start()
            elif until < self._wakes:
                self._changed.notify()

    def remove(self, deadline: Deadline) -> None:
        """Forget ``deadline``. The thread wakes in vain once, if it waits for it."""
        with self._changed:
            self.watched.pop(deadline, None)

    def _run(self) -> None:
        while True:
            with self._changed:
                now = time.monotonic()
                over = [one for one, until in self.watched.items() if until <= now]
                for one in over:
                    del self.watched[one]
                if not over:
                    self._wakes = min(self.watched.values(), default=math.inf)
                    left = self._wakes - now
                    self._changed.wait(None if left == math.inf else min(left, threading.TIMEOUT_MAX))
            for one in over:
                one.end()


watchdog = _Watchdog()


class Deadline:
    """The end of the time for one file, over all its connections. A context manager.

    When the time is over, the connection that is open then is shut down. So whatever waits for it returns: the TLS
    handshake, a header, a body, however slowly they come. Nothing that a server does can put that off.

    Args:
        url: what is fetched, for messages.
        seconds: how long it may take.
    """

    def __init__(self, url: str, seconds: float) -> None:
        self._url = url
        self._seconds = min(seconds, threading.TIMEOUT_MAX)
        self._until = time.monotonic() + self._seconds
        self._is_over = False
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        watchdog.add(self, self._until)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        watchdog.remove(self)
        with self._lock:
            self._close()

    @property
    def is_over(self) -> bool:
        """Whether the time is over."""
        return self._is_over or time.monotonic() >= self._until

    @property
    def left(self) -> float:
        """Seconds that are left. Raises ``MediaError`` if there are none."""
        self.check()
        return max(1e-3, self._until - time.monotonic())

    def check(self) -> None:
        """Raise ``MediaError`` if the time is over."""
        if self.is_over:
            raise self.error()

    def error(self) -> MediaError:
        """Return the error of a file that takes too long."""
        return MediaError(
            "unavailable_media",
            f"{shown(self._url)} took more than {counted(self._seconds, 'second')}: raise "
            "files=FileAccess(max_seconds=...)",
        )

    def sleep(self, seconds: float) -> None:
        """Wait, but not longer than until the time is over."""
        time.sleep(min(seconds, self.left))

    def watch(self, connected: socket.socket) -> socket.socket:
        """Shut this connection down when the time is over. It takes the place of the one before.

        The watched socket is a duplicate: the original may be wrapped by TLS, or closed, at any time.
        """
        with self._lock:
            self._close()
            self._socket = connected.dup()
        if self.is_over:
            self.end()
        return connected

    def run(self, work: Callable[[], _T]) -> _T:
        """Return what ``work`` returns; don't wait for it longer than until the time is over.

        For the look-up of names, which nothing can end. Its thread doesn't keep the process from ending.
        """
        return within(self.left, work, self.error)

    def end(self) -> None:
        """Shut the connection down. The time is over."""
        self._is_over = True
        with self._lock, contextlib.suppress(OSError):
            if self._socket is not None:
                self._socket.shutdown(socket.SHUT_RDWR)

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
