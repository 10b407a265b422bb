"""The oracle: one ``LLM.generate`` over the whole list, sorted by tokens: the best that an offline job could do."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.suite.arms.base import EngineSetting, Measured, in_row_order
from benchmarks.suite.arms.sampling import sampling_params
from benchmarks.suite.counters import EngineCounter
from benchmarks.suite.job import Job


def load_llm(setting: EngineSetting) -> tuple[Any, EngineCounter, float]:
    """Start vLLM's ``LLM``; return it, its counter, and the seconds that this took."""
    started = time.monotonic()
    from vllm import LLM

    # Statistics are on in every arm; LLM alone has them off by default.
    llm = LLM(model=setting.model, disable_log_stats=False, **setting.engine_args)
    return llm, EngineCounter().attach(llm.llm_engine), time.monotonic() - started


class Oracle:
    """``oracle-inproc`` and ``oracle-proc``: the core in this process or a child; an environment variable decides."""

    def __init__(self, name: str, setting: EngineSetting) -> None:
        self._setting = setting
        self._llm: Any = None
        self._counter = EngineCounter()

    def open(self) -> float:
        """Start the engine."""
        self._llm, self._counter, seconds = load_llm(self._setting)
        return seconds

    def run(self, job: Job) -> Measured:
        """Tokenize, sort and generate; all three are timed."""
        from vllm.inputs import TokensPrompt

        before = self._counter.counts.copy()
        started = time.monotonic()
        tokens = self._llm.get_tokenizer()(list(job.prompts))["input_ids"]
        order = sorted(range(job.rows), key=tokens.__getitem__)
        params = sampling_params(job)
        outputs = self._llm.generate(
            [TokensPrompt(prompt_token_ids=tokens[row]) for row in order],
            [params[row] for row in order],
            use_tqdm=False,
        )
        texts = in_row_order(order, [output.outputs[0].text for output in outputs], job.rows)
        seconds = time.monotonic() - started
        counts = self._counter.counts.since(before)
        return Measured.counted(seconds, texts, counts)

    def close(self) -> None:
        """Drop the engine; vLLM ends its core."""
        self._llm = None
