"""What an engine has done so far, in numbers that add up."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from daft_vllm.engine.request import Outcome


@dataclass(slots=True)
class EngineStats:
    """Counters since the engine was opened. Tokens are counted when their row ends.

    Attributes:
        rows: rows given to the engine.
        pending: rows that wait for room in vLLM.
        in_flight: rows inside vLLM.
        done: rows with an outcome, failed ones among them.
        failed: rows whose outcome is an error, null prompts left out.
        abandoned: rows whose caller went away (interrupted, or the engine died) before they had an outcome.
        prompt_tokens: prompt tokens of the rows that were generated.
        cached_tokens: those of them that came from the prefix cache.
        completion_tokens: tokens generated.
        steps: steps of vLLM's scheduler.
        mean_running: mean number of running sequences over those steps.
        peak_running: the most sequences that ran in one step.
        preemptions: sequences that vLLM had to put back for lack of KV cache.
    """

    rows: int = 0
    pending: int = 0
    in_flight: int = 0
    done: int = 0
    failed: int = 0
    abandoned: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    steps: int = 0
    mean_running: float = 0.0
    peak_running: int = 0
    preemptions: int = 0

    def finish(self, outcome: Outcome) -> None:
        """Count one more finished row."""
        self.done += 1
        self.failed += outcome.error is not None and outcome.error.code != "null_prompt"
        if outcome.finish_reason is not None:
            self.prompt_tokens += outcome.prompt_tokens
            self.cached_tokens += outcome.cached_tokens
            self.completion_tokens += outcome.completion_tokens

    def check(self) -> None:
        """Raise ``AssertionError`` unless every row is accounted for."""
        accounted = self.pending + self.in_flight + self.done + self.abandoned
        if self.rows != accounted:
            raise AssertionError(f"rows are unaccounted for: {self}")

    def as_dict(self) -> dict[str, float]:
        """Return the counters by name."""
        return asdict(self)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of the counters."""
        return tuple(f.name for f in fields(cls))
