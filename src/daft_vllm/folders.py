"""Folders in places where others may write too, such as the temporary folder of a shared machine."""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

RUN_PREFIX = "daft-vllm-run-"
"""How the names of the folders begin in which the workers of a job keep their counters."""
PROGRESS_PREFIX = "daft-vllm-progress-"
"""How those of queries in Python begin."""
_LONGEST_SOCKET = 107
"""Bytes of a socket's path on Linux (``sun_path``, without the null at its end)."""

_NEW_SECONDS = 60

SHARED_MEMORY = Path("/dev/shm")
"""Where Linux shows shared memory and semaphores as files. ``remove_unheld`` removes those of removed folders."""


def own_folder(path: Path) -> int:
    """Open a folder that only this user can use, and return its file descriptor. It is made if it isn't there.

    For a name that all processes of this user share, and that others can guess. What is there is taken only if it is a
    folder, no link, and belongs to this user. Rights of others are taken away.

    Raises:
        OSError: it can't be made, belongs to somebody else, or is a file or a link.
    """
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(folder)
        if status.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "it belongs to another user", str(path))
        if stat.S_IMODE(status.st_mode) != 0o700:
            os.fchmod(folder, 0o700)
    except BaseException:
        os.close(folder)
        raise
    return folder


def open_unlinked(path: str, flags: int) -> int:
    """Open a file, unless its last part is a link. For ``open(..., opener=open_unlinked)``."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def hold_folder(path: str) -> int:
    """Lock a folder as long as the returned file descriptor, or a copy that a fork has, is open.

    ``remove_unheld`` leaves a folder that is locked. The kernel unlocks it when its process ends, in whatever way. That
    is safer than a process id in a name: containers that share a folder have ids of their own.
    """
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(lock)
        raise
    return lock


def is_held(path: Path) -> bool:
    """Whether a process holds a folder. Only for one that is held already if it ever is: else this may be in the way.

    Raises:
        OSError: it is gone, or no folder.
    """
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(folder)
    return False


def write_whole(path: Path, text: str) -> None:
    """Write a file that readers see as it was before or with the whole text. Raises ``OSError``."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def remove_unheld(parent: Path, prefix: str, seconds: float = 0) -> None:
    """Remove the folders of this user that no process holds, and the shared memory that is named after them.

    Args:
        parent: where they are.
        prefix: what their names begin with.
        seconds: those that changed since so many seconds are left: they may have been made, and not be locked yet.
    """
    for path in parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                status = os.fstat(folder)
                if status.st_uid == os.geteuid() and time.time() - status.st_mtime >= seconds:
                    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove_shared_memory(path.name)
                    shutil.rmtree(path)
            finally:
                os.close(folder)


def _remove_shared_memory(folder: str) -> None:
    """Remove this user's shared memory and semaphores whose names have a folder's name in front."""
    for pattern in (f"{folder}-*", f"sem.{folder}-*"):
        for path in SHARED_MEMORY.glob(pattern):
            with contextlib.suppress(OSError):
                if path.lstat().st_uid == os.geteuid():
                    path.unlink()


@contextlib.contextmanager
def held_folder(prefix: str) -> Iterator[str]:
    """Make a new folder that only this user can use, and remove it at the end of the ``with`` block.

    If the process is killed, the next one that makes a folder with this prefix removes it, once it is a minute old.
    """
    remove_unheld(Path(tempfile.gettempdir()), prefix, _NEW_SECONDS)
    folder = tempfile.mkdtemp(prefix=prefix)
    lock = hold_folder(folder)
    try:
        yield folder
    finally:
        os.close(lock)
        shutil.rmtree(folder, ignore_errors=True)  # a worker that is late may still write


def passing_folder(prefix: str, room: int) -> str:
    """Return the path of a new folder that only this user can use. It is removed when this process ends.

    If the process is killed, the next one that asks for a folder with this prefix removes it, because nobody holds it.

    Args:
        prefix: what its name begins with.
        room: bytes that have to be left in the path of a socket in it. If the path of the temporary folder is too long
            for that, the folder is in ``/tmp``.
    """
    new = f".{prefix}"  # until it is locked: under its own name it always is
    made = tempfile.mkdtemp(prefix=new)
    if len(os.fsencode(made)) + room - 1 > _LONGEST_SOCKET:
        os.rmdir(made)
        made = tempfile.mkdtemp(prefix=new, dir="/tmp")
    hold_folder(made)  # as long as this process runs
    parent, name = os.path.split(made)
    path = os.path.join(parent, name[1:])
    os.rename(made, path)
    _passing.append((os.getpid(), path))
    remove_unheld(Path(parent), prefix)
    remove_unheld(Path(parent), new, _NEW_SECONDS)
    return path


_passing: list[tuple[int, str]] = []
"""The folders that go when this process ends, with the process that made each: a fork leaves its parent's."""


def remove_passing_folders() -> None:
    """Remove the folders that ``passing_folder`` made. Called as the process ends."""
    for owner, path in _passing:
        if os.getpid() == owner:
            shutil.rmtree(path, ignore_errors=True)


atexit.register(remove_passing_folders)
