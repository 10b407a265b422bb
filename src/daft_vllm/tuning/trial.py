"""One trial of ``daft-vllm tune``, in its own process: reads a job as JSON from stdin, prints the result as JSON."""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def run_trial(job: dict[str, Any]) -> dict[str, Any]:
    """Answer the job's prompts with one engine, and return the seconds it took, load excluded."""
    from daft_vllm.engine import EngineConfig, OfflineEngine, Request, SamplingOptions

    sampling = SamplingOptions(max_tokens=job["max_tokens"])
    config = EngineConfig(job["model"], job["engine_args"], gpus=job["gpus"])
    requests = [Request(text, apply_chat_template=None, sampling=sampling) for text in job["texts"]]
    with OfflineEngine(config, check_chat_template=False) as engine:
        engine.run([Request("Hello", apply_chat_template=None, sampling=SamplingOptions(max_tokens=2))])
        before, started = engine.stats(), time.monotonic()
        outcomes = engine.run(requests, dedupe=False)
        seconds = time.monotonic() - started
        stats = engine.stats().since(before)
    return {
        "seconds": seconds,
        "rows_per_second": len(requests) / seconds,
        "failed": sum(outcome.error is not None for outcome in outcomes),
        "completion_tokens": stats.completion_tokens,
        "preemptions": stats.preemptions,
    }


def main() -> None:
    """Run the trial that stdin describes."""
    result = run_trial(json.load(sys.stdin))
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
