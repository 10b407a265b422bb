"""A query's answers in a store: those that are there already, those that are added, and the rows that failed."""

from __future__ import annotations

import contextlib
import re
import secrets
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from daft_vllm.engine import Outcome, Request
from daft_vllm.engine.requests.outcome import NO_PROMPT, NOT_ASKED, ErrorValue
from daft_vllm.engine.requests.request import last_text, options_digest
from daft_vllm.engine.store.answers import AnswerStore
from daft_vllm.engine.store.codec import Record
from daft_vllm.engine.store.index import ANY_ROW, FIRST_ROW
from daft_vllm.engine.store.index import NOT_ASKED as COULD_NOT_BE_ASKED
from daft_vllm.engine.store.keys import cells_key, request_key
from daft_vllm.errors import StoreError
from daft_vllm.udf.worker.batch import Batch

_PROMPT = 200
"""Characters of a prompt that a record has, so that a reader sees what was asked."""


@dataclass(frozen=True)
class StoreSpec:
    """Where a query's answers are kept. Picklable.

    Args:
        place: an existing folder that all workers reach, or a URL.
        engine: what stands for the model and the engine's settings, from ``identity_digest``.
    """

    place: str
    engine: bytes


class StoredAnswers:
    """The store of one query in this process. Any number of threads may use it.

    Args:
        spec: where it is.

    Raises:
        StoreError: it can't be read.
    """

    def __init__(self, spec: StoreSpec) -> None:
        self.engine = spec.engine
        self.store = AnswerStore(spec.place)
        weakref.finalize(self, self.store.close)  # its thread and its file end with the query
        _open.add(self)

    def keys(self, requests: Iterable[Request]) -> list[bytes]:
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
            keys.append(request_key(one, by_options[options], self.engine))
        return keys


@dataclass(slots=True)
class _Row:
    """A row of a batch.

    Attributes:
        request: as the query asks it; its sampling options are in the key.
        key: its key.
        number: its ``row`` in the store.
        attempts: how often it was asked.
        tries: how many of the attempts count for the option ``retries``.
        code: the code of the error that its last record has.
        first: the answer that it had before it is asked with changed options.
    """

    request: Request
    key: bytes
    number: int
    attempts: int = 0
    tries: int = 0
    code: str | None = None
    first: Outcome | None = None


class BatchRecord:
    """What a store knows of the rows of one batch, and what it is told of them.

    A sampled answer without a seed is given to one row of this process only; rows that ask the same get one each. With
    several engines a row in each may get the same one, unless rows have a ``row_key``: then they don't ask the same.
    Rows with the same ``row_key`` that ask the same are treated as those without.

    Args:
        stored: the store.
        requests: the requests of the batch, by row number.
        changed: sampling options with which rows that failed before are asked again. None: those with an answer are
            not asked again.

    Attributes:
        known: the outcomes of rows that need not be asked, by row number.
        stored: how many of them were in the store.
        to_ask: requests for the others, by row number.

    Raises:
        StoreError: the store can't be read any more.
    """

    def __init__(
        self, stored: StoredAnswers, requests: Mapping[int, Request], changed: Mapping[str, Any] | None = None
    ) -> None:
        self._stored = stored
        self._rows: dict[int, _Row] = {}
        self.known: dict[int, Outcome] = {}
        self.to_ask: dict[int, Request] = {}
        keys = dict(zip(requests, stored.keys(requests.values()), strict=True))
        asked = [i for i, key in keys.items() if key]
        again = [requests[i].sampling.is_determined for i in asked]
        found = stored.store.find([keys[i] for i in asked], again)
        for i, one, is_shared in zip(asked, found, again, strict=True):
            number = ANY_ROW if is_shared else secrets.randbits(62) + FIRST_ROW
            row = self._rows[i] = _Row(requests[i], keys[i], number)
            if one is None:
                self.to_ask[i] = requests[i]
                continue
            row.number, row.attempts, row.code = one.row, one.attempts, one.code
            if one.is_answer and (one.code is None or changed is None):
                self.known[i] = one.outcome
                row.tries = one.attempts
                continue
            row.first = one.outcome if one.is_answer else None
            self.to_ask[i] = requests[i]
            if changed is not None:
                self.to_ask[i] = replace(requests[i], sampling=requests[i].sampling.replace(dict(changed)))
        self.stored = len(self.known)
        self.known |= {i: NO_PROMPT for i, key in keys.items() if not key}

    def is_due(self, row: int, attempt: int) -> bool:
        """Whether a row that failed may be asked for the ``attempt``-th retry. It may have been, in an earlier run."""
        return row not in self._rows or self._rows[row].tries <= attempt

    def keeper(self, rows: Sequence[int]) -> Callable[[int, Outcome], None]:
        """Return what takes each outcome as soon as it is there, by its place in ``rows``, and keeps it."""

        def keep(index: int, outcome: Outcome) -> None:
            row = self._rows[rows[index]]
            row.attempts += 1
            row.tries += 1
            self._append(row, outcome)

        return keep

    def chosen(
        self, row: int, outcome: Outcome, error: ErrorValue | None, read: Callable[[int, Outcome], ErrorValue | None]
    ) -> Outcome:
        """Return the outcome that a row gets, and record it if the store doesn't have it yet.

        If a row failed again although it was asked with changed options, it keeps the answer that it had.

        Args:
            row: the row.
            outcome: its last outcome.
            error: the row's error, after the outcome's text was read.
            read: reads another outcome's text, and returns the error.
        """
        one = self._rows.get(row)
        if one is None:
            return outcome
        if error is not None and one.first is not None:
            outcome, error = one.first, read(row, one.first)
            self._append(one, outcome, error)
        elif one.code != (error.code if error is not None else None):
            self._append(one, outcome, error)
        return outcome

    def note_unasked(self, batch: Batch, cells: Callable[[int], Any]) -> None:
        """Record the rows that could not be asked, and those that could, although they couldn't in an earlier run.

        Args:
            batch: the batch.
            cells: returns the cells of a row.
        """
        failed = {
            i: one for i, one in batch.refused.items() if one.error is not None and one.error.code not in NOT_ASKED
        }
        looked_at = range(batch.rows) if self._stored.store.has_unasked else list(failed)
        keys = [cells_key(_cells_text(batch.row_keys[i], cells, i), self._stored.engine) for i in looked_at]
        for i, key, found in zip(looked_at, keys, self._stored.store.find(keys, [True] * len(keys)), strict=True):
            attempts = found.attempts if found is not None else 0
            if i in failed:
                record = Record(key, COULD_NOT_BE_ASKED, attempts + 1, failed[i], batch.row_keys[i])
                self._stored.store.append(record)
            elif found is not None and found.code is not None:
                self._stored.store.append(Record(key, COULD_NOT_BE_ASKED, attempts, Outcome()))

    def flush(self) -> None:
        """Return when everything that was kept is on the disk. Raise ``StoreError`` if it can't be written."""
        self._stored.store.flush()

    def _append(self, row: _Row, outcome: Outcome, error: ErrorValue | None = None) -> None:
        """Append a record. ``error`` was found by reading the outcome's text."""
        is_verdict = error is not None and outcome.error is None
        if is_verdict:
            outcome = outcome._replace(error=error)
        row.code = outcome.error.code if outcome.error is not None else None
        prompt = last_text(row.request, _PROMPT)
        name = row.request.row_key
        self._stored.store.append(Record(row.key, row.number, row.attempts, outcome, name, prompt, is_verdict))


def _cells_text(row_key: str | None, cells: Callable[[int], Any], row: int) -> str:
    """Return what tells a row from others, whatever its cells are: an object's address changes in each run."""
    return f"key {row_key}" if row_key is not None else re.sub(r"0x[0-9a-f]{6,}", "", repr(cells(row)))


_open: weakref.WeakSet[StoredAnswers] = weakref.WeakSet()


def flush_all() -> None:
    """Return when everything that this process has kept is on the disk, or can't be written."""
    for one in list(_open):
        with contextlib.suppress(StoreError):
            one.store.flush()
