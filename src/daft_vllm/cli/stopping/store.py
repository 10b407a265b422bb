"""The store that ``daft-vllm run`` keeps beside its output while it runs, and what is left of earlier jobs."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

from daft_vllm.engine.store.remote import is_url
from daft_vllm.engine.store.removal import count_answers, remove_store
from daft_vllm.errors import OptionError, StoreError
from daft_vllm.tables.placing import DONE
from daft_vllm.tables.writing import Output
from daft_vllm.wording import counted, shown

SUFFIX = ".answers-store"
"""What follows the output's name in the name of the store beside it."""
_COMPLETE = ".complete"
"""A file in the store that says which output is complete. Only a job that is killed in its last moment leaves it."""
_CUT_OFF = ".cut-off"
"""A file in the store that says that the output has rows which the deadline cut off."""


@dataclass(frozen=True)
class Store:
    """Where a job keeps its answers.

    Attributes:
        place: the folder, or a URL.
        is_own: whether the command made it beside the output, and removes it at the end. Else the user named it.
    """

    place: str
    is_own: bool

    @property
    def folder(self) -> Path:
        """The folder, if it is no URL."""
        return Path(self.place)

    def left(self) -> str:
        """Return what a user does after the job ended early, or an empty text. An own store without answers goes."""
        if is_url(self.place):  # to count them, it would have to be copied
            return f"What was answered is kept in {self.place}: the same command goes on."
        with contextlib.suppress(StoreError):
            answers = count_answers(self.folder)
            if answers:
                again = "the same command with --resume goes on" if self.is_own else "the same command goes on"
                kept = counted(answers, "answer is kept", "answers are kept")
                return f"{kept} in {self.place}: {again}."
            if self.is_own:
                remove_store(self.folder)
        return ""

    def note_complete(self, part: Path) -> None:
        """Note which output is complete, right before it gets its place."""
        if self.is_own and self.folder.is_dir():
            (self.folder / _COMPLETE).write_text(json.dumps(_identity(part)), encoding="utf-8")

    def keep(self) -> str:
        """Keep an own store, because the deadline came before some rows were answered. Return what a user does then."""
        again = "--overwrite" if not self.is_own else "--overwrite --resume"
        if is_url(self.place):
            return f"The deadline came first. The same command with {again} answers the other rows."
        kept = counted(count_answers(self.folder), "answer is kept", "answers are kept")
        with contextlib.suppress(OSError):
            (self.folder / _COMPLETE).unlink(missing_ok=True)
            self.folder.mkdir(exist_ok=True)
            (self.folder / _CUT_OFF).touch()
        return f"The deadline came first. {kept} in {self.place}: the same command with {again} answers the other rows."

    def finish(self) -> None:
        """Remove an own store, because the output is complete."""
        if self.is_own:
            remove_store(self.folder)


def check_resume(place: str | None, named: str | None, *, keep: bool, resume: bool) -> None:
    """Raise ``OptionError`` if a job can't go on from a store, or not from that one.

    Args:
        place: the output, as the user wrote it. None: a preview.
        named: as in ``store_of``, and so are ``keep`` and ``resume``.
        keep: False for ``--no-store``.
        resume: go on with what an earlier job has left.
    """
    if not keep and (named is not None or resume):
        raise OptionError(f"--no-store and {'--store' if named is not None else '--resume'} exclude each other.")
    if resume and place is None:
        raise OptionError("--resume is for an output, and a preview has none: leave it out.")
    if resume and named is None and ("://" in str(place) or not _is_local()):
        raise OptionError(
            "--resume goes on from a store. Jobs on Ray, and those that write to a URL, have one only if it is named: "
            "pass --store FOLDER, a folder that all machines reach, or a URL."
        )


def store_of(
    output: Output, named: str | None, *, keep: bool = True, resume: bool = False, overwrite: bool = False
) -> Store | None:
    """Return where a job keeps its answers. None: nowhere. What earlier jobs have left is looked at, and removed.

    Args:
        output: where its rows go. It is claimed.
        named: ``--store``.
        keep: False for ``--no-store``.
        resume: go on with what an earlier job has left.
        overwrite: begin anew, unless there is something to go on with.

    Raises:
        OptionError: an earlier job has left a store, and the user has to choose.
        StoreError: what is there can't be read or removed.
    """
    if named is not None:
        return Store(named if is_url(named) else str(Path(named).expanduser()), is_own=False)
    if output.target is None or not _is_local():
        return None
    own = Store(str(own_store(output.target)), is_own=True)
    answers = count_answers(own.folder)
    if answers and not resume:
        if not overwrite:
            kept = counted(answers, "answer is kept", "answers are kept")
            raise OptionError(
                f"an earlier job with this output stopped, and {kept} in {own.folder}: pass --resume to go on, or "
                "--overwrite to begin anew, which deletes them."
            )
        remove_store(own.folder)
    elif own.folder.is_dir() and not answers:
        remove_store(own.folder)
    if own.folder.is_dir():
        (own.folder / _CUT_OFF).unlink(missing_ok=True)
    return own if keep else None


def is_complete(output: Output) -> bool:
    """Whether an output that ``--resume`` finds is that of a job that ended well. If so, its own store is removed.

    Raises:
        OptionError: something else is there.
    """
    target = output.target
    if target is None or not output.exists():
        return False
    done = target / DONE if output.is_folder else target
    own = own_store(target)
    answers = count_answers(own)
    if (own / _CUT_OFF).exists():
        raise OptionError(
            f"{shown(output.place)} lacks the answers that its deadline cut off: pass --overwrite --resume to get "
            "them, or --overwrite to begin anew."
        )
    if answers and not (done.exists() and _complete(own) == _identity(done)):
        raise OptionError(
            f"{shown(output.place)} exists already, and {own} has answers of a job that was to replace it: pass "
            "--overwrite --resume to go on with that, or --overwrite to begin anew."
        )
    if not done.exists():
        raise OptionError(
            f"the folder {shown(output.place)} has files, and no {DONE}: no job has finished there. Choose another "
            "one, or pass --overwrite."
        )
    if own.is_dir():
        remove_store(own)
    return True


def own_store(target: Path) -> Path:
    """Return the folder of the store that belongs to an output."""
    return target.parent / f"{target.name}{SUFFIX}"


def _identity(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size]


def _complete(store: Path) -> list[int] | None:
    try:
        found = json.loads((store / _COMPLETE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, list) else None


def _is_local() -> bool:
    """Whether all workers reach this machine's folders. Those of Ray may be on other machines."""
    from daft_vllm.udf.preflight.connection import on_ray

    return not on_ray()
