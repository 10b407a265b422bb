"""A query's answers in a store: those that are there already, and those that are added."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from daft_vllm.engine import Outcome, Request
from daft_vllm.engine.requests.outcome import NO_PROMPT
from daft_vllm.engine.requests.request import options_digest
from daft_vllm.engine.store.answers import AnswerStore
from daft_vllm.engine.store.keys import request_key
from daft_vllm.errors import StoreError


@dataclass(frozen=True)
class StoreSpec:
    """Where a query's answers are kept. Picklable.

    Args:
        folder: an existing folder that all workers reach.
        engine: what stands for the model and the engine's settings, from ``identity_digest``.
    """

    folder: str
    engine: bytes


class StoredAnswers:
    """The store of one query in this process. Any number of threads may use it.

    Args:
        spec: where it is.

    Raises:
        StoreError: it can't be read.
    """

    def __init__(self, spec: StoreSpec) -> None:
        self._engine = spec.engine
        self._store = AnswerStore(Path(spec.folder))
        weakref.finalize(self, self._store.close)  # its thread and its file end with the query
        _open.add(self)

    def split(self, requests: Sequence[Request]) -> tuple[list[Outcome | None], list[bytes]]:
        """Return the stored outcome of each request, None where there is none, and each request's key.

        A sampled answer without a seed is given to one row of this process only; rows that ask the same get one each.
        With several engines a row in each may get the same one.

        Raises:
            StoreError: it can't be read any more.
        """
        keys = self._keys(requests)
        asked = [i for i, key in enumerate(keys) if key]
        found = self._store.find([keys[i] for i in asked], [requests[i].sampling.is_determined for i in asked])
        outcomes: list[Outcome | None] = [None if key else NO_PROMPT for key in keys]
        for i, outcome in zip(asked, found, strict=True):
            outcomes[i] = outcome
        return outcomes, keys

    def _keys(self, requests: Sequence[Request]) -> list[bytes]:
        """Return the key of each request, empty if it has no prompt. Most rows of a batch share their options."""
        by_options: dict[tuple[object, ...], bytes] = {}
        keys = []
        for one in requests:
            if one.prompt is None:
                keys.append(b"")
                continue
            options = (id(one.sampling), id(one.constraint), id(one.toolbox), one.thinking, one.own_seed)
            if options not in by_options:
                by_options[options] = options_digest(one)
            keys.append(request_key(one, by_options[options], self._engine))
        return keys

    def keeper(self, keys: Sequence[bytes]) -> Callable[[int, Outcome], None]:
        """Return what takes each outcome as soon as it is there, by its place in ``keys``, and keeps it.

        Outcomes without a text are not kept: these rows are asked again.
        """

        def keep(index: int, outcome: Outcome) -> None:
            is_final = outcome.error is None or outcome.error.code == "truncated"
            if outcome.text is not None and is_final and keys[index]:
                self._store.append(keys[index], outcome)

        return keep

    def flush(self) -> None:
        """Return when everything that was kept is on the disk. Raise ``StoreError`` if it can't be written."""
        self._store.flush()


_open: weakref.WeakSet[StoredAnswers] = weakref.WeakSet()


def flush_all() -> None:
    """Return when everything that this process has kept is on the disk, or can't be written."""
    for one in list(_open):
        with contextlib.suppress(StoreError):
            one.flush()
