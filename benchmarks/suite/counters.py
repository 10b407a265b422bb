"""Counts tokens and scheduler steps of a vLLM engine that another library built."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


@dataclass
class Counts:
    """Counters since an engine was opened, or between two moments."""

    steps: int = 0
    running_sum: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    @property
    def mean_running(self) -> float | None:
        """Running sequences, averaged over the steps."""
        return self.running_sum / self.steps if self.steps else None

    def since(self, earlier: Counts) -> Counts:
        """Return what has been counted since ``earlier``."""
        return Counts(
            self.steps - earlier.steps,
            self.running_sum - earlier.running_sum,
            self.prompt_tokens - earlier.prompt_tokens,
            self.cached_tokens - earlier.cached_tokens,
            self.output_tokens - earlier.output_tokens,
        )

    def copy(self) -> Counts:
        """Return a copy of the counters."""
        return replace(self)


class EngineCounter:
    """A stat logger of vLLM, added to those that the engine has. Every arm's engine makes these statistics."""

    def __init__(self) -> None:
        self.counts = Counts()

    def attach(self, engine: Any) -> EngineCounter:
        """Listen to an ``LLMEngine`` or ``AsyncLLM`` that was started with statistics on."""
        if engine.logger_manager is None:
            raise ValueError("the engine was started with disable_log_stats: nothing to count")
        engine.logger_manager.stat_loggers.append(self)
        return self

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        """Count one step; vLLM calls this."""
        if scheduler_stats is not None:
            self.counts.steps += 1
            self.counts.running_sum += scheduler_stats.num_running_reqs
        if iteration_stats is not None:
            self.counts.prompt_tokens += iteration_stats.prompt_token_stats.total
            self.counts.cached_tokens += iteration_stats.prompt_token_stats.cached_tokens
            self.counts.output_tokens += iteration_stats.num_generation_tokens

    def log(self) -> None:
        """Print nothing."""

    def log_engine_initialized(self) -> None:
        """Print nothing."""

    def record_sleep_state(self, sleep: int = 0, level: int = 0) -> None:
        """Count nothing."""

    def record_admission_rejection(self, reason: str) -> None:
        """Count nothing."""
