"""The time that one file may take, and what ends its connections then."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Self, TypeVar

from daft_vllm.engine.requests.media import MediaError
from daft_vllm.udf.columns.places import shown

_T = TypeVar("_T")


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
        self._seconds = seconds
        self._until = time.monotonic() + seconds
        self._is_over = False
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()
        self._timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), self._shut_down)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._timer.cancel()
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
            f"{shown(self._url)} took more than {self._seconds:g} seconds: raise files=FileAccess(max_seconds=...)",
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
            self._shut_down()
        return connected

    def run(self, work: Callable[[], _T]) -> _T:
        """Return what ``work`` returns; don't wait for it longer than until the time is over.

        For the look-up of names, which nothing can end. Its thread doesn't keep the process from ending.
        """
        future: Future[_T] = Future()

        def put() -> None:
            try:
                future.set_result(work())
            except BaseException as e:
                future.set_exception(e)

        threading.Thread(target=put, name="daft-vllm-names", daemon=True).start()
        try:
            return future.result(self.left)
        except TimeoutError:
            raise self.error() from None

    def _shut_down(self) -> None:
        self._is_over = True
        with self._lock, contextlib.suppress(OSError):
            if self._socket is not None:
                self._socket.shutdown(socket.SHUT_RDWR)

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
