"""How many rows are sent to vLLM before it has begun them."""

from __future__ import annotations

from typing import Any

from daft_vllm.engine import EngineConfig
from daft_vllm.engine.process.thread import STEPS_AHEAD, EngineThread
from daft_vllm.engine.scheduling.ledger import Ledger


class Admission:
    """An engine's thread that isn't started."""

    def __init__(self, *, step: int, in_flight: int) -> None:
        self.thread = EngineThread(EngineConfig("m"), Ledger(), {}, lambda *_: None)
        self.thread._max_in_flight = in_flight
        self.thread._max_waiting_tokens = STEPS_AHEAD * step
        self.in_flight: dict[str, Any] = self.thread.lane.in_flight
        self.sent = 0

    def fill(self, new_tokens: int) -> int:
        """Send rows as long as there is room, and return how many."""
        before = self.sent
        while self.thread._has_room():
            self.in_flight[str(self.sent)] = None  # counted only
            self.thread._sent.append(new_tokens)
            self.thread._sent_tokens += new_tokens
            self.sent += 1
        return self.sent - before

    def running(self, rows: int) -> None:
        """Set how many rows vLLM has begun and not finished."""
        self.thread._watch.running = rows

    def finish(self, rows: int) -> None:
        for name in list(self.in_flight)[:rows]:
            del self.in_flight[name]


def test_long_prompts_wait_until_the_next_steps_need_them() -> None:
    admission = Admission(step=2048, in_flight=128)
    assert admission.fill(1088) == 4  # 4,352 tokens: two steps and a bit
    assert admission.fill(1088) == 0
    admission.running(2)  # a step later the first two have begun
    assert admission.fill(1088) == 2
    admission.running(6)  # all have
    assert admission.fill(64) == 64  # these share their prefix with earlier rows
    admission.running(70)
    admission.finish(60)
    admission.running(10)
    assert admission.fill(1088) == 4


def test_short_prompts_are_limited_by_their_number() -> None:
    admission = Admission(step=2048, in_flight=128)
    assert admission.fill(8) == 128
    admission.running(64)
    assert admission.fill(8) == 0
    admission.finish(64)
    admission.running(0)
    assert admission.fill(8) == 64


def test_rows_that_were_given_up_still_run() -> None:
    admission = Admission(step=2048, in_flight=8)
    assert admission.fill(8) == 8
    admission.running(8)
    admission.finish(8)  # their caller gave them up, and vLLM has not noticed yet
    assert admission.fill(8) == 8


def test_one_prompt_at_least() -> None:
    assert Admission(step=512, in_flight=16).fill(100_000) == 1
