"""Counters of what an engine has done so far, and a check that every row is counted."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Literal

from daft_vllm.engine.requests.outcome import Outcome

_GAUGES = ("pending", "in_flight", "peak_running")
"""Fields with a current value or a maximum. All others are counters, which only grow."""


State = Literal["loading", "ready", "died", "ended"]
"""What one vLLM does: it loads the model for the first time; takes rows; has died, and is started again once rows need
it; or has ended for good."""


@dataclass(slots=True)
class EngineStats:
    """Counters since the engine was opened. Tokens are counted when their row ends.

    Attributes:
        rows: rows given to the engine.
        pending: rows that wait for room in vLLM, or for a row that is computed in their place.
        in_flight: rows inside vLLM.
        done: rows with an outcome, including failed rows.
        unsent: those of them that vLLM never got: null prompts, and rows that were refused.
        failed: rows that ended with an error, except null prompts.
        abandoned: rows that got no outcome, because their caller was interrupted or the engine died.
        stored: rows whose answer was in the query's store; they were not sent.
        retried: rows that were sent again after an answer that was cut off or invalid; not counted in ``rows`` again.
        duplicates: rows that got the answer of an equal row, without being computed.
        prompt_tokens: prompt tokens of the rows that vLLM computed, without duplicates.
        cached_tokens: prompt tokens that came from the prefix cache.
        computed_tokens: prompt tokens that did not.
        optimal_tokens: the fewest prompt tokens that these rows need to compute, in the best order and with room for
            all in the cache. At most ``computed_tokens``: rows that come later, or again, may find more in the cache
            than is known when they are sent.
        completion_tokens: tokens generated.
        drafted_tokens: tokens that were guessed, and verified by vLLM.
        accepted_tokens: those of them that were right. Each saved its row a step.
        media: images and other media that were loaded, or failed to load.
        media_seconds: time that loading them took, summed over all of them.
        steps: steps of vLLM's scheduler.
        running_sum: sequences that ran, summed over those steps.
        peak_running: the most sequences that ran in one step.
        preemptions: times that vLLM had to put a sequence back because the KV cache was full.
        restarts: times that vLLM died and was started again.
        busy_seconds: time with rows inside vLLM.
        idle_seconds: time without rows inside vLLM.
        queue_seconds: time that rows waited for room in vLLM, summed over rows.
    """

    rows: int = 0
    pending: int = 0
    in_flight: int = 0
    done: int = 0
    unsent: int = 0
    failed: int = 0
    abandoned: int = 0
    stored: int = 0
    retried: int = 0
    duplicates: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    optimal_tokens: int = 0
    completion_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    media: int = 0
    media_seconds: float = 0.0
    steps: int = 0
    running_sum: int = 0
    peak_running: int = 0
    preemptions: int = 0
    restarts: int = 0
    busy_seconds: float = 0.0
    idle_seconds: float = 0.0
    queue_seconds: float = 0.0

    @property
    def mean_running(self) -> float:
        """Mean number of running sequences over the steps of vLLM's scheduler."""
        return round(self.running_sum / self.steps, 2) if self.steps else 0.0

    def finish(self, outcome: Outcome, *, duplicate: bool = False) -> None:
        """Count one more finished row."""
        self.done += 1
        self.failed += outcome.error is not None and outcome.error.code != "null_prompt"
        if duplicate:
            self.duplicates += 1
        elif outcome.finish_reason is not None:
            self.prompt_tokens += outcome.prompt_tokens
            self.cached_tokens += outcome.cached_tokens
            self.computed_tokens += outcome.prompt_tokens - outcome.cached_tokens
            self.completion_tokens += outcome.completion_tokens

    def since(self, before: EngineStats) -> EngineStats:
        """Return what was added after ``before``, with the current ``pending``, ``in_flight`` and ``peak_running``."""
        added = replace(self)
        for name in (field.name for field in fields(self) if field.name not in _GAUGES):
            setattr(added, name, getattr(self, name) - getattr(before, name))
        added.optimal_tokens = min(added.optimal_tokens, added.computed_tokens)
        return added

    def check(self) -> None:
        """Raise ``AssertionError`` unless every row is accounted for."""
        accounted = self.pending + self.in_flight + self.done + self.abandoned
        if self.rows != accounted:
            raise AssertionError(f"rows are unaccounted for: {self}")

    def as_dict(self) -> dict[str, float]:
        """Return the counters and ``mean_running`` by name."""
        return {**asdict(self), "mean_running": self.mean_running}

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names that ``as_dict`` uses."""
        return (*(f.name for f in fields(cls)), "mean_running")


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """What one vLLM does now, and has done since it was opened. With several vLLMs ``EngineStats`` has the sums.

    Attributes:
        state: see ``State``.
        running: sequences in its batch.
        waiting: rows that wait for it: in its part of the queue, or inside it.
        done: rows that it answered. Equal rows, which get the same answer, are not among them.
        prompt_tokens: prompt tokens of those rows.
        cached_tokens: those of them that came from its prefix cache.
        completion_tokens: tokens of those rows' answers.
        steps: steps of its scheduler.
        deaths: times that it died, or stalled and was killed.
        restarts: times that it was started again.
        busy_seconds: time with rows inside it.
    """

    state: State = "loading"
    running: int = 0
    waiting: int = 0
    done: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    steps: int = 0
    deaths: int = 0
    restarts: int = 0
    busy_seconds: float = 0.0

    def since(self, before: EngineFigures) -> EngineFigures:
        """Return what was added after ``before``, with the current ``state``, ``running`` and ``waiting``."""
        now = ("state", "running", "waiting")
        names = [field.name for field in fields(self) if field.name not in now]
        return replace(self, **{name: getattr(self, name) - getattr(before, name) for name in names})
