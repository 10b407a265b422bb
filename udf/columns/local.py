"""Reads files of this machine, and only regular ones below the folders that are allowed."""

from __future__ import annotations

import functools
import os
import stat
from collections.abc import Sequence

from daft_vllm.engine.requests.media import MediaError
from daft_vllm.wording import shown

_LONGEST_PATH = 4096
"""PATH_MAX of Linux. To resolve a path of a megabyte would take minutes."""
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFLNK: "a link",
}


def read_local(path: str, folders: Sequence[str], most: int, start: int = 0) -> bytes:
    """Return the content of a file from the byte ``start`` on, at most ``most`` bytes of it.

    What was opened is looked at before it is read: where it really is, and what it is. So nothing that is moved or
    linked meanwhile leads elsewhere, and no FIFO and no device is waited for, or even woken. A hard link to a file
    elsewhere can't be told from the file.

    Args:
        path: the file.
        folders: the folders that are allowed, with links resolved.
        most: the most bytes that are returned.
        start: the first byte.

    Raises:
        MediaError: the file is below none of the folders, or isn't a regular file on a disk.
        OSError: it isn't there, or can't be read.
    """
    if len(path) > _LONGEST_PATH:
        raise MediaError("unavailable_media", f"{shown(path)} is longer than a path can be ({_LONGEST_PATH} bytes)")
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)  # a name only: nothing is opened for reading yet
    except OSError:
        _check_below(path, os.path.realpath(path), folders)  # elsewhere, not even what is missing is told
        raise
    try:
        same = f"/proc/self/fd/{place}"
        _check_below(path, os.readlink(same), folders)
        status = os.fstat(place)
        kind = stat.S_IFMT(status.st_mode)
        if kind != stat.S_IFREG:
            raise MediaError(
                "unavailable_media", f"{shown(path)} is {_KINDS.get(kind, 'something else')}, not a regular file"
            )
        opened = os.open(same, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            # The kernel's own files say that they are empty: such as /proc/self/environ, which holds keys.
            if status.st_dev == _kernels_device() or (not status.st_size and os.pread(opened, 1, 0)):
                raise MediaError("unavailable_media", f"{shown(path)} is made by the kernel, it is no file on a disk")
            return _read(opened, start, min(most, status.st_size - start))
        finally:
            os.close(opened)
    finally:
        os.close(place)


def _read(file: int, start: int, size: int) -> bytes:
    """Return ``size`` bytes from ``start`` on, or as many as there are. One call of the kernel gives up to 2 GiB."""
    parts = []
    while size > 0 and (part := os.pread(file, size, start)):
        parts.append(part)
        start += len(part)
        size -= len(part)
    return b"".join(parts)


@functools.cache
def _kernels_device() -> int:
    return os.stat("/proc").st_dev


def _check_below(path: str, real: str, folders: Sequence[str]) -> None:
    if not os.path.isabs(real) or not any(os.path.commonpath((folder, real)) == folder for folder in folders):
        raise MediaError(
            "unavailable_media",
            f"{shown(path)} is a local file, and below no folder that may be read. Allow its folder: "
            "prompt(..., files=FileAccess(folders=[...]))",
        )
