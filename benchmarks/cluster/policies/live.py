"""daft-vllm's own: the real ledger, with one lane for each replica."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from benchmarks.cluster.policies.base import Policy, Setting
from benchmarks.cluster.replica import Replica
from benchmarks.cluster.traces import BLOCK, Row
from daft_vllm.engine.requests.outcome import Outcome
from daft_vllm.engine.requests.prepared import Prepared, pack_tokens
from daft_vllm.engine.scheduling.ledger import Ledger
from daft_vllm.engine.scheduling.row import Call
from daft_vllm.engine.scheduling.row import Row as LedgerRow

_QUEUE_FACTOR = 2.0  # EngineConfig.queue_factor
_STEPS_AHEAD = 2  # engine/process/thread.py
_ANSWER = Outcome("")


class Live(Policy):
    """The real ``Ledger``. The conditions under which a replica gets one more row are those of ``EngineThread``.

    A KV block of a prompt is one token here: the keys have the same order, and are short.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.ledger = Ledger()
        self._lanes = [self.ledger.new_lane() for _ in range(setting.replicas)]
        for place, lane in enumerate(self._lanes):
            lane.wake = lambda place=place: self.woken.add(place)  # type: ignore[misc]
            self.ledger.open(lane, 1, setting.size.max_num_seqs)
        self._params = cast(Any, SimpleNamespace(max_tokens=setting.max_tokens))
        self._sent: list[deque[int]] = [deque() for _ in self._lanes]
        self._sent_tokens = [0] * setting.replicas
        self._most = setting.size.max_num_seqs * _QUEUE_FACTOR
        self._most_tokens = setting.size.max_num_batched_tokens * _STEPS_AHEAD
        self._packed: dict[tuple[int, ...], bytes] = {}
        self._by_call: dict[int, Sequence[Row]] = {}  # of open calls

    def add(self, rows: Sequence[Row]) -> None:
        """Take a batch."""
        call = Call(len(rows))
        self._by_call[id(call)] = rows
        call.future.add_done_callback(lambda _: self._by_call.pop(id(call)))
        made = []
        for i, row in enumerate(rows):
            shared = self._packed.get(row.shared)
            if shared is None:
                shared = self._packed[row.shared] = pack_tokens(row.shared)
            tokens = shared + pack_tokens(range(row.first, row.first + row.own))
            made.append(LedgerRow(call, i, Prepared(tokens, self._params, False), 1, dedupe=False))
        self.ledger.count_expected(len(rows), [])
        self.ledger.add(made)
        self.ledger.wake_others()

    def next(self, place: int, replica: Replica) -> Row | None:
        """Return the row that the ledger gives to the replica's lane."""
        lane = self._lanes[place]
        sent = self._sent[place]

        def has_room() -> bool:
            while len(sent) > len(replica.waiting):
                self._sent_tokens[place] -= sent.popleft()
            return replica.in_flight < self._most and self._sent_tokens[place] < self._most_tokens

        taken = self.ledger.next_row(lane, has_room)
        if taken is None:
            return None
        row = self._by_call[id(taken.call)][taken.index]
        new = taken.new_tokens * BLOCK
        sent.append(new)
        self._sent_tokens[place] += new
        lane.in_flight[str(row.index)] = taken
        self.ledger.sent(lane, [taken])
        return row

    def answered(self, place: int, rows: Sequence[Row]) -> None:
        """Give rows their outcome."""
        for row in rows:
            self.ledger.answered(self._lanes[place], str(row.index), _ANSWER)
