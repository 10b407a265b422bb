"""Where an output is made: in a hidden folder on its disk. It gets its place when it is complete, all at once.

The folder belongs to one job at a time. The kernel frees the lock on it when the job ends, however it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

from daft_vllm.errors import OptionError
from daft_vllm.folders import own_folder
from daft_vllm.wording import shown

logger = logging.getLogger("daft_vllm")

DONE = "_SUCCESS"
"""An empty file that a folder gets last, as Spark and Hadoop name it. Readers of Parquet folders skip it."""
ROWS = "rows"
"""The folder inside the hidden one in which the files of a folder are made."""
_LOCK = "lock"
_MOVING = "moving.json"
_LONGEST_NAME = 200
"""Bytes of an output's name that the hidden folder's name can have. Linux allows 255 in all."""


class Claim:
    """The right to write one output, and the hidden folder for it. What a killed job left there is removed.

    Args:
        target: the output, a file or a folder.

    Raises:
        OptionError: another job writes this output now.
        OSError: the folder can't be made.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self.folder = part_folder(target)
        self._lock = self._locked()
        if (self.folder / _MOVING).exists():
            self._move_files()  # a job was killed while it moved a complete output into its place
        self._clear()

    def _locked(self) -> int:
        while True:
            os.close(own_folder(self.folder))
            path = self.folder / _LOCK
            try:
                lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                continue  # its owner has just removed the folder
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = os.read(lock, 100).decode(errors="replace").strip()
                os.close(lock)
                raise OptionError(
                    f"another job writes {shown(str(self.target))} now{f' (process {owner})' if owner else ''}: wait "
                    "for it, stop it, or choose another output."
                ) from None
            except OSError as e:  # a network disk without locks
                logger.warning("%s can't be locked (%s): start no second job with this output.", self.folder, e)
            try:
                if os.path.samestat(os.fstat(lock), path.stat()):
                    os.truncate(lock, 0)
                    os.write(lock, f"{os.getpid()}\n".encode())
                    return lock
            except FileNotFoundError:
                pass
            os.close(lock)  # the file was removed while this process waited for it

    def _clear(self) -> None:
        for path in self.folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != _LOCK:
                path.unlink()

    def release(self) -> None:
        """Remove the hidden folder, and let other jobs write the output. Safe to call again."""
        lock, self._lock = self._lock, -1
        if lock < 0:
            return
        with contextlib.suppress(OSError):
            if not (self.folder / _MOVING).exists():  # else the next job has to finish that
                self._clear()
                (self.folder / _LOCK).unlink()
                self.folder.rmdir()
        os.close(lock)

    def new_file(self) -> Path:
        """Return the path of the file to write, after removing what an earlier try has left."""
        self._clear()
        return self.folder / self.target.name

    def new_folder(self) -> Path:
        """Return the empty folder to write files into, after removing what an earlier try has left."""
        self._clear()
        path = self.folder / ROWS
        path.mkdir()
        return path

    def place_file(self, before: Callable[[Path], None] = lambda _: None) -> None:
        """Give the file that was written its place, in one step.

        Args:
            before: called with the complete file, right before that.
        """
        part = self.folder / self.target.name
        _sync(part)
        before(part)
        part.replace(self.target)
        _sync(self.target.parent)

    def place_folder(self, before: Callable[[Path], None] = lambda _: None) -> None:
        """Give the files that were written their place: in one step if nothing is there yet, else one after the other.

        In the second case old files go first, and ``DONE`` comes last. If this process is killed in between, the next
        claim of this output finishes that.

        Args:
            before: called with a complete ``DONE``, right before that.
        """
        rows = self.folder / ROWS
        done = rows / DONE
        done.touch()
        for path in rows.iterdir():
            _sync(path)
        _sync(rows)
        before(done)
        if not self.target.exists():
            rows.rename(self.target)
        else:
            old = [path.name for path in self.target.iterdir() if path != self.folder]
            part = self.folder / f"{_MOVING}.part"
            part.write_text(json.dumps({"old": old}), encoding="utf-8")
            _sync(part)
            part.replace(self.folder / _MOVING)
            _sync(self.folder)
            self._move_files()
        _sync(self.target.parent)

    def _move_files(self) -> None:
        """Move files one by one. Whatever has been done already is left as it is."""
        record = self.folder / _MOVING
        new = [path.name for path in (self.folder / ROWS).iterdir()] if (self.folder / ROWS).is_dir() else []
        old = set(json.loads(record.read_text(encoding="utf-8"))["old"])
        if DONE not in new:
            old.discard(DONE)  # what is there is the new one
        for name in sorted(old, key=lambda name: name != DONE):
            path = self.target / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        for name in sorted(new, key=lambda name: name == DONE):
            (self.folder / ROWS / name).replace(self.target / name)
        _sync(self.target)
        record.unlink()


def part_folder(target: Path) -> Path:
    """Return the hidden folder of an output: beside it, or inside one that is a disk or has a read-only parent."""
    name = target.name
    if len(os.fsencode(name)) > _LONGEST_NAME:
        name = hashlib.blake2b(os.fsencode(name), digest_size=16).hexdigest()
    inside = False
    if target.is_dir() and not target.is_symlink():
        is_disk = target.stat().st_dev != target.parent.stat().st_dev
        inside = is_disk or not os.access(target.parent, os.W_OK | os.X_OK)
    return (target if inside else target.parent) / f".daft-vllm-{name}.part"


def finish_moving(target: Path) -> None:
    """If a job was killed while it moved a complete output into its place, finish that."""
    if (part_folder(target) / _MOVING).exists():
        Claim(target).release()


def _sync(path: Path) -> None:
    """Return when a file or a folder is on the disk, with its name if it is a folder."""
    is_folder = stat.S_ISDIR(path.stat().st_mode)
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    except OSError:
        if not is_folder:  # some network disks can't do it with folders
            raise
    finally:
        os.close(file)
