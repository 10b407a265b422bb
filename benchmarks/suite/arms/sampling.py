"""A job's options as vLLM's ``SamplingParams``, for the arms that take them."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.suite.job import Job


def sampling_kwargs(job: Job, max_tokens: int) -> dict[str, Any]:
    """Return the options of one row by vLLM's names, without its JSON schema."""
    return {"temperature": 0.0, "max_tokens": max_tokens, "ignore_eos": job.ignore_eos}


def sampling_params(job: Job) -> list[Any]:
    """Return vLLM's parameters row by row; rows with the same limit share one object. Imports vLLM."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    structured = StructuredOutputsParams(json=json.dumps(job.schema)) if job.schema is not None else None
    limits = job.limits()
    params = {n: SamplingParams(**sampling_kwargs(job, n), structured_outputs=structured) for n in set(limits)}
    return [params[limit] for limit in limits]
