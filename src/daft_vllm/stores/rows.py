"""The rows of a store, and their numbers."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daft_vllm.engine.store.index import Index, opened_index
from daft_vllm.engine.store.manifest import asked_of

SLOWEST = 10
SAMPLES = 3
"""How many of the slowest rows, and of the rows with each error code, are kept to be shown."""
_BEGINNING = 2000
"""Characters of the texts of these rows."""
_NUMBERS = ("prompt_tokens", "cached_tokens", "completion_tokens", "attempt")
DEAD_LETTERS = pa.schema(
    [
        pa.field("key", pa.string()),
        pa.field("prompt", pa.string()),
        pa.field("code", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("attempts", pa.int32()),
        pa.field("text", pa.large_string()),
        pa.field("written", pa.timestamp("ms", "UTC")),
    ]
)
"""The columns of the table of rows that failed. ``key``: the row's ``row_key``. ``text``: what the model wrote."""


@dataclass
class Figures:
    """The numbers of a store.

    Attributes:
        asked: what its job asks, by name, as text.
        rows: rows that it knows, each once, whatever its attempts.
        failed: how many rows failed, by error code, the most frequent first.
        finished: how many answers there are, by vLLM's finish reason.
        totals: the sums of the answers' tokens, and ``attempt``: how often rows were asked in all.
        written: when each row's record was written, in seconds since 1970, sorted.
        prompt_tokens: of each row that has some.
        completion_tokens: of each answer.
        lengths: of each answer, in characters.
        slowest: the rows that vLLM had longest, as records.
        samples: some rows with each error code, as records.
    """

    asked: Mapping[str, str]
    rows: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    finished: dict[str, int] = field(default_factory=dict)
    totals: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_NUMBERS, 0))
    written: np.ndarray = field(default_factory=lambda: np.empty(0))
    prompt_tokens: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    completion_tokens: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    lengths: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    slowest: list[dict[str, Any]] = field(default_factory=list)
    samples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    @property
    def failures(self) -> int:
        """Rows that failed."""
        return sum(self.failed.values())


def opened(folder: Path) -> tuple[Mapping[str, str], Index]:
    """Return what a store's job asks, and the store.

    Raises:
        StoreError: it is no store, or can't be read.
    """
    return asked_of(folder), opened_index(folder)


def figures_of(folder: Path) -> Figures:
    """Return the numbers of a store. It may be in use.

    Raises:
        StoreError: it is no store, or can't be read.
    """
    asked, index = opened(folder)
    found = Figures(asked)
    failed: Counter[str] = Counter()
    finished: Counter[str] = Counter()
    arrays: dict[str, list[np.ndarray]] = {name: [] for name in ("written", "prompt", "completion", "lengths")}
    slowest: list[tuple[float, int, dict[str, Any]]] = []
    for batch in index.records():
        found.rows += batch.num_rows
        codes, texts = batch.column("error_code"), batch.column("text")
        failed.update(code for code in codes.to_pylist() if code is not None)
        has_text = pc.is_valid(texts)
        finished.update(str(one) for one in batch.column("finish_reason").filter(has_text).to_pylist())
        for name in _NUMBERS:
            found.totals[name] += pc.sum(batch.column(name)).as_py() or 0
        arrays["written"].append(batch.column("written").cast(pa.int64()).to_numpy())
        prompt = batch.column("prompt_tokens")
        arrays["prompt"].append(prompt.filter(pc.greater(prompt, 0)).to_numpy())
        arrays["completion"].append(batch.column("completion_tokens").filter(has_text).to_numpy())
        arrays["lengths"].append(pc.utf8_length(texts.filter(has_text)).to_numpy().astype(np.int64))
        _keep_slowest(slowest, batch, found.rows)
        for code in pc.unique(codes).drop_null().to_pylist():
            kept = found.samples.setdefault(code, [])
            if len(kept) < SAMPLES:
                kept += _shortened(batch.filter(pc.equal(codes, code)).slice(0, SAMPLES - len(kept)))
    found.failed, found.finished = dict(failed.most_common()), dict(finished.most_common())
    if found.rows:
        found.written = np.sort(np.concatenate(arrays["written"])) / 1000
        found.prompt_tokens, found.completion_tokens, found.lengths = (
            np.concatenate(arrays[name]) for name in ("prompt", "completion", "lengths")
        )
    found.slowest = [row for _, _, row in sorted(slowest, key=lambda one: -one[0])]
    return found


def _keep_slowest(slowest: list[tuple[float, int, dict[str, Any]]], batch: pa.RecordBatch, number: int) -> None:
    seconds = batch.column("seconds").to_numpy(zero_copy_only=False)
    if not np.any(seconds > 0):  # format 1 doesn't have them
        return
    for at in np.argsort(-np.nan_to_num(seconds))[:SLOWEST].tolist():
        if seconds[at] > 0 and (len(slowest) < SLOWEST or seconds[at] > slowest[0][0]):
            (row,) = _shortened(batch.slice(at, 1))
            heapq.heappush(slowest, (float(seconds[at]), number + at, row))
            if len(slowest) > SLOWEST:
                heapq.heappop(slowest)


def _shortened(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = batch.to_pylist()
    return [{**row, "text": row["text"] and row["text"][:_BEGINNING]} for row in rows]


def rows_of(folder: Path, *, failed: bool = False, codes: Collection[str] = ()) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a store as they hold now, in batches, see ``Index.records``.

    Args:
        folder: the store.
        failed: only rows that failed.
        codes: only rows with one of these error codes. Empty: any.

    Raises:
        StoreError: it is no store, or can't be read.
    """
    _, index = opened(folder)
    for batch in index.records(failed=failed or bool(codes)):
        if codes:
            batch = batch.filter(pc.is_in(batch.column("error_code"), pa.array(list(codes), pa.string())))
        if batch.num_rows:
            yield batch


def table_of(batches: Iterator[pa.RecordBatch]) -> pa.Table:
    """Return rows of a store as a table with the columns of ``DEAD_LETTERS``."""
    names = {"key": "row_key", "code": "error_code", "reason": "error_message", "attempts": "attempt"}
    found = [
        pa.record_batch([batch.column(names.get(one.name, one.name)) for one in DEAD_LETTERS], schema=DEAD_LETTERS)
        for batch in batches
    ]
    return pa.Table.from_batches(found, schema=DEAD_LETTERS)
