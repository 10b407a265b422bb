"""Counts the steps of vLLM's scheduler, which show that vLLM is alive."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from daft_vllm.engine.requests.stats import EngineFigures, EngineStats, State


class StepWatch:
    """Counts the steps of vLLM's scheduler. ``last_step`` is ``time.monotonic()`` of the latest sign of life.

    ``on_step`` is called after each step. ``running`` is the number of sequences that are in vLLM's batch after it.
    The thread that owns vLLM counts its ``deaths`` and ``restarts``.
    """

    def __init__(self) -> None:
        self.last_step = time.monotonic()
        self.on_step: Callable[[], None] = lambda: None
        self.running = 0
        self.steps = 0
        self.running_sum = 0
        self.running_peak = 0
        self.preemptions = 0
        self.drafted = 0
        self.accepted = 0
        self.deaths = 0
        self.restarts = 0

    def count(self, stats: EngineStats) -> None:
        """Add the steps and the restarts to an engine's counters."""
        stats.steps += self.steps
        stats.restarts += self.restarts
        stats.preemptions += self.preemptions
        stats.drafted_tokens += self.drafted
        stats.accepted_tokens += self.accepted
        stats.running_sum += self.running_sum
        stats.peak_running = max(stats.peak_running, self.running_peak)

    def figures(self, state: State, rows: EngineStats) -> EngineFigures:
        """Return the figures of this vLLM.

        Args:
            state: what it does now.
            rows: the counters of its rows.
        """
        running = min(self.running, rows.in_flight) if state == "ready" else 0
        return EngineFigures(
            state=state,
            running=running,
            waiting=rows.pending + rows.in_flight - running,
            done=rows.done,
            prompt_tokens=rows.prompt_tokens,
            cached_tokens=rows.cached_tokens,
            completion_tokens=rows.completion_tokens,
            steps=self.steps,
            deaths=self.deaths,
            restarts=self.restarts,
            busy_seconds=rows.busy_seconds,
        )

    def logger_factory(self) -> Any:
        """Return what vLLM's ``stat_loggers=`` takes: a factory of loggers that report to this watch."""
        from vllm.v1.metrics.loggers import StatLoggerBase

        watch = self

        class StepLogger(StatLoggerBase):  # type: ignore[misc]  # vLLM's types are not followed
            def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
                pass

            def record(
                self,
                scheduler_stats: Any,
                iteration_stats: Any,
                mm_cache_stats: Any = None,
                engine_idx: int = 0,
            ) -> None:
                watch.last_step = time.monotonic()
                if scheduler_stats is not None:
                    watch.steps += 1
                    watch.running = scheduler_stats.num_running_reqs
                    watch.running_sum += scheduler_stats.num_running_reqs
                    watch.running_peak = max(watch.running_peak, scheduler_stats.num_running_reqs)
                    if (guesses := scheduler_stats.spec_decoding_stats) is not None:
                        watch.drafted += guesses.num_draft_tokens
                        watch.accepted += guesses.num_accepted_tokens
                if iteration_stats is not None:
                    watch.preemptions += iteration_stats.num_preempted_reqs
                watch.on_step()

            def log_engine_initialized(self) -> None:
                pass

        return StepLogger
