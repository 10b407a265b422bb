"""``job.json`` in a store's folder: what was asked. A job that asks something else is refused.

``command.json`` has the command that asked it, if it was one, so that it can be run again.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from daft_vllm.engine.store.segments import SUFFIX
from daft_vllm.errors import StoreError
from daft_vllm.wording import shown

NAME = "job.json"
COMMAND = "command.json"
_FORMAT = 2
_READ = (1, 2)
"""Formats that are read. Format 1 becomes format 2 when a job goes on: its new answers are in files of format 2."""


def open_folder(folder: Path, asked: Mapping[str, str], *, changed: bool = False, called: str | None = None) -> None:
    """Make the folder of a store, and note what is asked; or compare it with what was asked before.

    Args:
        folder: the folder.
        asked: everything that answers depend on besides the table, by name, as text.
        changed: note what is asked now in place of what was asked before. Answers to equal requests are then used.
        called: what messages call it. None: its path.

    Raises:
        StoreError: the folder can't be made or read, holds something else, or was made by a job that asked something
            else. The message says what differs.
    """
    name = called or str(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        before = _read(folder)
        names = (NAME, COMMAND)
        others = [path for path in folder.iterdir() if path.name not in names and not path.name.startswith(".")]
        answers = [path for path in others if path.suffix == SUFFIX]
        if before is None and len(answers) < len(others):
            raise StoreError(f"{name} holds other files: name a new or an empty folder as store.")
        if before is None or not answers or (changed and before.asked != dict(asked)):
            _write(folder, NAME, {"format": _FORMAT, "asked": dict(asked)})
            return
        differing = [_difference(one, before.asked.get(one), asked.get(one)) for one in sorted({*before.asked, *asked})]
        differing = [one for one in differing if one]
        if not differing and before.format < _FORMAT:
            _write(folder, NAME, {"format": _FORMAT, "asked": dict(asked)})
    except OSError as e:
        raise StoreError(f"the store {name} can't be made: {e}") from e
    if differing:
        raise StoreError(
            f"the store {name} has the answers of a job that asked something else: {'; '.join(differing)}. Name "
            "another folder, or delete this one, to compute all rows. With store_changed=True the rows that now ask "
            "something else are computed, and the answers of the others are used."
        )


def _difference(name: str, before: str | None, now: str | None) -> str:
    if before == now:
        return ""
    if before is None:
        return f"{name} is {shown(now or '')}, and was not given"
    if now is None:
        return f"{name} was {shown(before)}, and is not given"
    return f"{name} was {shown(before)}, and is {shown(now)}"


def asked_of(folder: Path) -> dict[str, str]:
    """Return what the job of a store asks, by name, as text.

    Raises:
        StoreError: it is no store, is damaged, or another version of daft-vllm has written it.
    """
    try:
        found = _read(folder)
    except OSError as e:
        raise StoreError(f"the store {shown(str(folder))} can't be read: {e.strerror}.") from e
    if found is None:
        raise StoreError(f"{shown(str(folder))} is no store of answers: there is no {NAME} in it.")
    return found.asked


class Command(NamedTuple):
    """A command, to be run again.

    Attributes:
        folder: in which it was run.
        arguments: its arguments.
    """

    folder: str
    arguments: list[str]


def write_command(folder: Path, command: Command) -> None:
    """Keep the command of a store's job. Only this user can read it.

    Raises:
        StoreError: it can't be written.
    """
    try:
        _write(folder, COMMAND, command._asdict(), mode=0o600)
    except OSError as e:
        raise StoreError(f"the command can't be written to the store {shown(str(folder))}: {e.strerror}.") from e


def read_command(folder: Path) -> Command | None:
    """Return the command of a store's job. None: it was none.

    Raises:
        StoreError: it can't be read.
    """
    path = folder / COMMAND
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return Command(str(data["folder"]), [str(one) for one in data["arguments"]])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise StoreError(f"{path} can't be read ({type(e).__name__}): run the job again, which writes it anew.") from e


class _Job(NamedTuple):
    format: int
    asked: dict[str, str]


def _read(folder: Path) -> _Job | None:
    path = folder / NAME
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict) or not isinstance(data.get("asked", {}), dict):
            raise ValueError("it is no object")
    except FileNotFoundError:
        return None
    except ValueError as e:
        raise StoreError(
            f"{path} is damaged ({e}): delete it if this is the store of the same job. The answers are in other files."
        ) from e
    if data.get("format") not in _READ:
        raise StoreError(
            f"{path} has format {data.get('format')}, and this version of daft-vllm reads {_FORMAT}: use the version "
            "that wrote it, or name another folder."
        )
    return _Job(data["format"], dict(data["asked"]))


def _write(folder: Path, name: str, content: Mapping[str, Any], *, mode: int = 0o644) -> None:
    """Write it all or not at all. If another process is faster, with the same job, its file is as good."""
    part = folder / f".{name}.{secrets.token_hex(4)}"
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, folder / name)
