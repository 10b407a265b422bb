"""``job.json`` in a store's folder: what was asked. A job that asks something else is refused."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from daft_vllm.engine.store.segments import SUFFIX
from daft_vllm.errors import StoreError
from daft_vllm.wording import shown

NAME = "job.json"
_FORMAT = 1


def open_folder(folder: Path, asked: Mapping[str, str], *, changed: bool = False) -> None:
    """Make the folder of a store, and note what is asked; or compare it with what was asked before.

    Args:
        folder: the folder.
        asked: everything that answers depend on besides the table, by name, as text.
        changed: note what is asked now in place of what was asked before. Answers to equal requests are then used.

    Raises:
        StoreError: the folder can't be made or read, holds something else, or was made by a job that asked something
            else. The message says what differs.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        before = _read(folder)
        others = [path for path in folder.iterdir() if path.name != NAME and not path.name.startswith(".")]
        answers = [path for path in others if path.suffix == SUFFIX]
        if before is None and len(answers) < len(others):
            raise StoreError(f"{folder} holds other files: name a new or an empty folder as store.")
        if before is None or not answers or (changed and before != dict(asked)):
            _write(folder, asked)
            return
    except OSError as e:
        raise StoreError(f"the store {folder} can't be made: {e}") from e
    differing = [_difference(name, before.get(name), asked.get(name)) for name in sorted({*before, *asked})]
    differing = [one for one in differing if one]
    if differing:
        raise StoreError(
            f"the store {folder} has the answers of a job that asked something else: {'; '.join(differing)}. Name "
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


def _read(folder: Path) -> dict[str, str] | None:
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
    if data.get("format") != _FORMAT:
        raise StoreError(
            f"{path} has format {data.get('format')}, and this version of daft-vllm reads {_FORMAT}: use the version "
            "that wrote it, or name another folder."
        )
    return dict(data["asked"])


def _write(folder: Path, asked: Mapping[str, str]) -> None:
    """Write it all or not at all. If another process is faster, with the same job, its file is as good."""
    part = folder / f".{NAME}.{secrets.token_hex(4)}"
    with part.open("w", encoding="utf-8") as file:
        json.dump({"format": _FORMAT, "asked": dict(asked)}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, folder / NAME)
