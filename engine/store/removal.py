"""What a store's folder holds, for whoever wants to tell the user, and its removal."""

from __future__ import annotations

import contextlib
from pathlib import Path

from daft_vllm.engine.store.index import Index
from daft_vllm.engine.store.manifest import COMMAND, NAME
from daft_vllm.engine.store.segments import SUFFIX
from daft_vllm.errors import StoreError


def count_answers(folder: Path) -> int:
    """Return how many answers are in a folder that may be a store. 0 if it isn't there.

    Raises:
        StoreError: it can't be read.
    """
    try:
        return len(Index(folder)) if folder.is_dir() else 0
    except (OSError, ValueError) as e:
        raise StoreError(f"the store {folder} can't be read: {e}") from e


def remove_store(folder: Path) -> None:
    """Remove a store. Files that are none of a store's stay, and so does the folder then.

    Raises:
        StoreError: it can't be removed, or has other files.
    """
    try:
        if not folder.is_dir():
            return
        for path in folder.iterdir():
            if path.name in (NAME, COMMAND) or path.suffix == SUFFIX or path.name.startswith("."):
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()
        folder.rmdir()
    except OSError as e:
        raise StoreError(f"the store {folder} can't be removed: {e.strerror}. Remove it by hand.") from e
