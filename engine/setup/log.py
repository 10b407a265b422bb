"""The log of this process's engines: what vLLM, torch and others say goes to a file instead of the screen.

The file belongs to this process and to vLLM's processes. It is removed when this process ends, unless its name was
given to the user (``LogFile.kept``). ``DAFT_VLLM_LOG=screen`` shows everything on stderr as well, and so does whoever
sets vLLM's own logging variables.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import io
import logging
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import psutil

from daft_vllm.errors import EngineStartError, OptionError

WHERE = "DAFT_VLLM_LOG"
"""Environment variable: ``"file"`` (the default) or ``"screen"``."""
VLLM_VARIABLES = ("VLLM_LOGGING_LEVEL", "VLLM_LOGGING_CONFIG_PATH", "VLLM_LOGGING_STREAM", "VLLM_CONFIGURE_LOGGING")
"""vLLM's own variables about its log. Whoever sets one of them wants to see the log."""
MAX_BYTES = 16 << 20
"""A log that is longer is cut to its last ``KEPT_BYTES``."""
KEPT_BYTES = 1 << 20
KEPT_FILES = 20
"""How many logs of processes that have ended stay in the temporary folder."""
FOLLOW_SECONDS = 0.2
"""How often new text is copied to the screen, if it is wanted there."""

_PREFIX = "daft-vllm-"
_OWN = "[daft-vllm] "


def log_on_screen() -> bool:
    """Whether the log is wanted on the screen too.

    Raises:
        OptionError: ``DAFT_VLLM_LOG`` has another value than ``"file"`` or ``"screen"``.
    """
    where = os.environ.get(WHERE, "").strip().lower()
    if where not in ("", "file", "screen"):
        raise OptionError(f"the environment variable {WHERE} is file or screen, got {where!r}.")
    return where == "screen" or (not where and any(name in os.environ for name in VLLM_VARIABLES))


class LogFile:
    """A file to which this process and its children append. Callable from any thread.

    Attributes:
        path: where it is.
        fd: its file descriptor, for children.

    Raises:
        EngineStartError: no folder takes temporary files. vLLM's own sockets need one too.
    """

    def __init__(self) -> None:
        try:
            _remove_old_logs()
            self.fd, name = tempfile.mkstemp(prefix=f"{_PREFIX}{os.getpid()}-", suffix=".log")
        except OSError as e:
            raise EngineStartError(
                f"the log can't be written to a folder for temporary files ({e}): set TMPDIR to one that is writable."
            ) from None
        flags = fcntl.fcntl(self.fd, fcntl.F_GETFL)
        fcntl.fcntl(self.fd, fcntl.F_SETFL, flags | os.O_APPEND)
        self.path = Path(name)
        self._kept = False
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._shown: int | None = None  # up to where it was copied to stderr; None: it isn't copied

    def kept(self) -> str:
        """Return the file's name for a message to the user. The file stays when this process ends."""
        self._kept = True
        ray = sys.modules.get("ray")
        return f"{self.path} on {socket.gethostname()}" if ray is not None and ray.is_initialized() else str(self.path)

    def size(self) -> int:
        """Return the size in bytes."""
        return os.fstat(self.fd).st_size

    def read(self, start: int, limit: int = 1 << 18) -> str:
        """Return what was written after byte ``start``, of that the last ``limit`` bytes."""
        size = self.size()
        start = max(start if start <= size else 0, size - limit)  # it may have been cut
        return os.pread(self.fd, size - start, start).decode("utf-8", "replace")

    def write(self, text: str) -> None:
        """Append ``text``. If the disk is full, the text is lost."""
        with contextlib.suppress(OSError):
            os.write(self.fd, text.encode("utf-8", "replace"))

    def trim(self) -> None:
        """Cut a long file to its last part. Does nothing to others, or if the disk fails: the engine goes on."""
        with self._lock, contextlib.suppress(OSError):
            size = self.size()
            if size > MAX_BYTES:
                last = os.pread(self.fd, KEPT_BYTES, size - KEPT_BYTES)
                os.ftruncate(self.fd, 0)
                os.write(self.fd, b"(what was before is cut off)\n" + last)

    def follow(self) -> None:
        """Copy to stderr what is appended from now on, as long as this process runs."""
        with self._lock:
            if self._shown is not None:
                return
            self._shown = self.size()
        threading.Thread(target=self._follow, name="daft-vllm-log", daemon=True).start()

    def _follow(self) -> None:
        while True:
            time.sleep(FOLLOW_SECONDS)
            self.show()

    def show(self) -> None:
        """Copy to stderr what is new, if the log is followed. Does nothing if stderr is closed."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            if self._shown is None:
                return
            size = self.size()
            start = self._shown if self._shown <= size else 0  # it may have been cut
            self._shown = size
            if size > start and log_on_screen() and sys.stderr is not None:
                sys.stderr.write(os.pread(self.fd, size - start, start).decode("utf-8", "replace"))
                sys.stderr.flush()

    def remove(self) -> None:
        """Remove the file when this process ends, unless its name was given to the user."""
        self.show()
        if not self._kept and os.getpid() == self._owner:
            self.path.unlink(missing_ok=True)


@functools.cache
def log_file() -> LogFile:
    """Return the log of this process's engines."""
    log = LogFile()
    atexit.register(log.remove)
    return log


@contextlib.contextmanager
def quiet_thread() -> Iterator[None]:
    """Send to the log what this thread writes to stdout and stderr inside, unless the log is wanted on the screen.

    Other threads write as before. What is said with Python's ``warnings`` and ``logging`` goes the same way. Don't call
    code of daft-vllm inside that warns the user.
    """
    if log_on_screen() or getattr(_this_thread, "quiet", False):
        yield
        return
    swapped = {name: _ThreadStream(name, getattr(sys, name)) for name in ("stdout", "stderr")}
    filters = [(handler, _Quiet(handler)) for handler in screen_handlers()]
    for handler, quiet in filters:
        handler.addFilter(quiet)
    for name, stream in swapped.items():
        setattr(sys, name, stream)
    _this_thread.quiet = True
    try:
        yield
    finally:
        _this_thread.quiet = False
        for handler, quiet in filters:
            handler.removeFilter(quiet)
        for name, stream in swapped.items():
            if getattr(sys, name) is stream:
                setattr(sys, name, stream.original)


class _Quiet(logging.Filter):
    """Lets a handler write to the log what other packages' loggers say in a thread inside ``quiet_thread``."""

    def __init__(self, handler: logging.Handler) -> None:
        super().__init__()
        self._handler = handler

    def filter(self, record: logging.LogRecord) -> bool:
        if not getattr(_this_thread, "quiet", False) or record.name.split(".")[0] == "daft_vllm":
            return True
        log_file().write(self._handler.format(record) + "\n")
        return False


def screen_handlers() -> list[logging.Handler]:
    """Return the handlers of all loggers that write to the screen."""
    screen = [one for one in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__) if one is not None]
    loggers = [
        logging.root,
        *(one for one in logging.root.manager.loggerDict.values() if isinstance(one, logging.Logger)),
    ]
    handlers = {handler: None for logger in loggers for handler in logger.handlers}
    return [one for one in handlers if any(getattr(one, "stream", None) is stream for stream in screen)]


def route_vllm_logger() -> None:
    """Send vLLM's log of this process to the file or to stderr, whichever is wanted when a line is written."""
    for handler in logging.getLogger("vllm").handlers:
        if type(handler) is logging.StreamHandler and not isinstance(handler.stream, _LogStream):
            handler.setStream(_LogStream(handler.stream))


def start_log() -> LogFile:
    """Return the log, for an engine that starts now. If it is wanted on the screen, it is copied to stderr from now on.

    Raises:
        OptionError: see ``log_on_screen``.
    """
    log = log_file()
    if log_on_screen():
        log.follow()
    return log


@functools.cache
def mark_own_warnings() -> None:
    """In a process of vLLM: mark the warnings of daft-vllm in the log, so that ``own_warnings`` finds them."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.WARNING)
    handler.setFormatter(logging.Formatter(f"{_OWN}%(message)s"))
    logging.getLogger("daft_vllm").addHandler(handler)


def own_warnings(text: str) -> list[str]:
    """Return the warnings of daft-vllm in the text of a log, each once."""
    return list(dict.fromkeys(line.removeprefix(_OWN) for line in text.splitlines() if line.startswith(_OWN)))


_this_thread = threading.local()


class _ThreadStream(io.TextIOBase):
    """Stands for ``sys.stdout`` or ``sys.stderr``: the text of threads inside ``quiet_thread`` goes to the log.

    Handlers of loggers keep it for good. Then it is the ``sys.stdout`` or ``sys.stderr`` of that moment.
    """

    def __init__(self, name: str, original: TextIO | None) -> None:
        self._name = name
        self.original = original

    def _now(self) -> TextIO | None:
        now: TextIO | None = getattr(sys, self._name)
        return self.original if isinstance(now, _ThreadStream) else now

    def write(self, text: str) -> int:
        if getattr(_this_thread, "quiet", False):
            log_file().write(text)
        elif (now := self._now()) is not None:  # None: a process without a console, where printing does nothing
            return now.write(text)
        return len(text)

    def flush(self) -> None:
        if (now := self._now()) is not None:
            now.flush()

    def isatty(self) -> bool:
        now = self._now()
        return now is not None and not getattr(_this_thread, "quiet", False) and now.isatty()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._now(), name)


class _LogStream(io.TextIOBase):
    def __init__(self, screen: TextIO) -> None:
        self._screen = screen

    def write(self, text: str) -> int:
        if log_on_screen():
            return self._screen.write(text)
        log_file().write(text)
        return len(text)

    def flush(self) -> None:
        if log_on_screen():
            self._screen.flush()


def _remove_old_logs() -> None:
    """Remove logs of processes that have ended, except the newest. They were kept after failures."""
    ended = []
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*.log"):
        with contextlib.suppress(OSError, ValueError):
            if path.lstat().st_uid == os.geteuid() and not psutil.pid_exists(int(path.name.split("-")[2])):
                ended.append((path.lstat().st_mtime, path))
    for _, path in sorted(ended)[:-KEPT_FILES]:
        with contextlib.suppress(OSError):
            path.unlink()
