"""A row on its way through the engine, and the call that it belongs to."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError

from daft_vllm.engine.requests.outcome import Outcome
from daft_vllm.engine.requests.prepared import TOKEN_BYTES, Prepared
from daft_vllm.engine.scheduling.prefix import key_tokens, order_key

_sequence = itertools.count()


class Call:
    """Collects the outcomes of one caller's rows. Wakes the caller when all are there, or when the call fails.

    Args:
        size: how many rows.
        each: called with the index and the outcome of each row as soon as it is there. It doesn't block.
    """

    def __init__(self, size: int, each: Callable[[int, Outcome], None] | None = None) -> None:
        self._each = each
        self.outcomes: list[Outcome | None] = [None] * size
        self.missing = size
        self.future: Future[list[Outcome]] = Future()
        self.submitted_at = time.monotonic()
        if not size:
            self.future.set_result([])

    def put(self, index: int, outcome: Outcome) -> None:
        """Set the outcome of row ``index``; the last one wakes the caller."""
        self.outcomes[index] = outcome
        if self._each is not None:
            self._each(index, outcome)
        self.missing -= 1
        if self.missing == 0:
            with contextlib.suppress(InvalidStateError):  # cancelled, or failed
                self.future.set_result([outcome for outcome in self.outcomes if outcome is not None])

    def fail(self, error: Exception) -> None:
        """Raise ``error`` in the caller."""
        with contextlib.suppress(InvalidStateError):
            self.future.set_exception(error)


class Row:
    """One row to be generated. Its tokens are kept once, in the key.

    Attributes:
        call: the call that waits for it.
        index: its place in that call.
        params: vLLM's sampling parameters.
        constrained: whether a constraint is enforced on the output.
        max_tokens: the most tokens that its answer may have.
        size: tokens of its prompt as it was rendered.
        prompt_tokens: tokens of its prompt. Once its media are loaded, their tokens are included.
        new_tokens: tokens of its prompt that it doesn't share with a row before it in the queue's order. Known when the
            row leaves the queue; until then all tokens.
        first_with_media: whether it is the first row in the queue's order with its media.
        items: see ``Prepared.items``.
        thinking: see ``Prepared.thinking``.
        toolbox: see ``Prepared.toolbox``.
        adapter: see ``Prepared.adapter``.
        media: see ``Prepared.media``.
        key: its place in the order of the queue.
        digest: see ``Prepared.digest``. None also if rows are not deduplicated.
        twins: rows that get the answer of this one, or None.
        queue_seconds: seconds until vLLM took it.
        sent_at: when vLLM took it, the last time.
        deaths: how often vLLM died while this row was inside it.
    """

    __slots__ = (
        "_block_size",
        "adapter",
        "call",
        "constrained",
        "deaths",
        "digest",
        "first_with_media",
        "index",
        "items",
        "key",
        "max_tokens",
        "media",
        "new_tokens",
        "params",
        "prompt_tokens",
        "queue_seconds",
        "sent_at",
        "size",
        "thinking",
        "toolbox",
        "twins",
    )

    def __init__(self, call: Call, index: int, prepared: Prepared, block_size: int, *, dedupe: bool) -> None:
        tokens, self.params, self.constrained, _, self.media, self.thinking, self.items, self.toolbox, self.adapter = (
            prepared
        )
        self._block_size = block_size
        self.call = call
        self.index = index
        self.max_tokens: int = self.params.max_tokens or 1
        self.size = self.prompt_tokens = self.new_tokens = len(tokens) // TOKEN_BYTES
        self.first_with_media = True
        self.key = order_key(tokens, block_size, next(_sequence), self.media)
        self.digest = prepared.digest() if dedupe else None
        self.twins: list[Row] | None = None
        self.queue_seconds = 0.0
        self.sent_at = self.call.submitted_at
        self.deaths = 0

    @property
    def token_ids(self) -> list[int]:
        """The prompt's token ids."""
        return key_tokens(self.key, self._block_size, self.size, self.media)
