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
from pathlib import Path

_LONGEST_SOCKET = 107
"""Bytes of a socket's path on Linux (``sun_path``, without the null at its end)."""

_NEW_SECONDS = 60


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


def _remove_unused(path: Path) -> None:
    """Remove a folder of this user that no process has locked. A new one may not be locked yet, so it is left."""
    with contextlib.suppress(OSError):
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            status = os.fstat(folder)
            if status.st_uid == os.geteuid() and time.time() - status.st_mtime > _NEW_SECONDS:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
        finally:
            os.close(folder)


def passing_folder(prefix: str, room: int) -> str:
    """Return the path of a new folder that only this user can use. It is removed when this process ends.

    If the process is killed, the next one that asks for a folder with this prefix removes it: the lock on it is free.

    Args:
        prefix: what its name begins with.
        room: bytes that have to be left in the path of a socket in it. If the path of the temporary folder is too long
            for that, the folder is in ``/tmp``.
    """
    path = tempfile.mkdtemp(prefix=prefix)
    if len(os.fsencode(path)) + room > _LONGEST_SOCKET:
        os.rmdir(path)
        path = tempfile.mkdtemp(prefix=prefix, dir="/tmp")
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # kept open as long as this process runs
    fcntl.flock(lock, fcntl.LOCK_EX)
    for other in Path(path).parent.glob(f"{prefix}*"):
        _remove_unused(other)
    _passing.append((os.getpid(), path))
    return path


_passing: list[tuple[int, str]] = []
"""The folders that go when this process ends, with the process that made each: a fork leaves its parent's."""


def remove_passing_folders() -> None:
    """Remove the folders that ``passing_folder`` made. Called as the process ends."""
    for owner, path in _passing:
        if os.getpid() == owner:
            shutil.rmtree(path, ignore_errors=True)


atexit.register(remove_passing_folders)
