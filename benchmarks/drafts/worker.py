"""One engine in a process of its own: reads what to run from its input, line by line, and writes what it took."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.drafts.workloads import Workload, as_text, make_workload

ARMS = ("ours", "off", "generate", "ngram", "suffix")
"""``ours``: daft-vllm's engine. ``off``: without guesses. ``generate``: ``LLM.generate`` over the sorted list, and with
vLLM's own methods of guessing."""
_METHODS: dict[str, dict[str, Any]] = {
    "ngram": {"method": "ngram", "num_speculative_tokens": 6, "prompt_lookup_max": 4, "prompt_lookup_min": 2},
    "suffix": {"method": "suffix", "num_speculative_tokens": 16},
}

Run = Callable[[Workload], tuple[list[str], dict[str, float]]]


def open_arm(arm: str, model: str, sequences: int) -> Run:
    """Load an engine, and return what runs a workload on it."""
    args: dict[str, Any] = {
        "max_model_len": 2048,
        "dtype": "float32",
        "max_num_seqs": sequences,
        "kv_cache_memory_bytes": 1 << 30,
    }
    return _ours(arm, model, args) if arm in ("ours", "off") else _generate(arm, model, args)


def _ours(arm: str, model: str, args: dict[str, Any]) -> Run:
    from daft_vllm import Constraint, EngineConfig, OfflineEngine, Request, SamplingOptions

    engine = OfflineEngine(EngineConfig(model, args, gpus=0, draft=arm == "ours"), check_chat_template=False)

    def run(workload: Workload) -> tuple[list[str], dict[str, float]]:
        constraint = None
        if workload.schema is not None:
            constraint = Constraint(json_schema=as_text(workload.schema))
        elif workload.choices:
            constraint = Constraint(choices=workload.choices)
        sampling = SamplingOptions(max_tokens=workload.max_tokens, ignore_eos=workload.ignore_eos)
        requests = [
            Request(text, apply_chat_template=False, sampling=sampling, constraint=constraint)
            for text in workload.prompts
        ]
        before = engine.stats()
        texts = [outcome.text or "" for outcome in engine.run(requests, dedupe=False)]
        return texts, engine.stats().since(before).as_dict()

    return run


def _generate(arm: str, model: str, args: dict[str, Any]) -> Run:
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", HF_HUB_OFFLINE="1")
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    from benchmarks.suite.counters import EngineCounter

    if arm in _METHODS:
        args["speculative_config"] = _METHODS[arm]
    llm = LLM(
        model=model,
        enforce_eager=True,
        max_num_batched_tokens=512,
        block_size=32,
        structured_outputs_config={"backend": "xgrammar", "disable_any_whitespace": True},
        disable_log_stats=False,
        **args,
    )
    counter = EngineCounter().attach(llm.llm_engine)

    def run(workload: Workload) -> tuple[list[str], dict[str, float]]:
        structured = None
        if workload.schema is not None:
            structured = StructuredOutputsParams(json=workload.schema)
        elif workload.choices:
            structured = StructuredOutputsParams(choice=[*workload.choices])
        params = SamplingParams(
            max_tokens=workload.max_tokens,
            temperature=0,
            ignore_eos=workload.ignore_eos,
            structured_outputs=structured,
        )
        order = sorted(range(len(workload.prompts)), key=workload.prompts.__getitem__)
        before = counter.counts.copy()
        outputs = llm.generate([workload.prompts[i] for i in order], params, use_tqdm=False)
        texts = [""] * len(order)
        for i, output in zip(order, outputs, strict=True):
            texts[i] = output.outputs[0].text
        return texts, {"steps": counter.counts.since(before).steps}

    return run


def main() -> None:
    """Serve the arm that the command line names. Its first line says whether the engine runs."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    arm, model, sequences = sys.argv[1], sys.argv[2], int(sys.argv[3])
    began = time.monotonic()
    try:
        run = open_arm(arm, model, sequences)
    except Exception as e:
        print(json.dumps({"problem": f"{type(e).__name__}: {str(e)[:300]}"}), file=answers, flush=True)
        return
    print(json.dumps({"load": time.monotonic() - began}), file=answers, flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        for line in sys.stdin:
            workload = make_workload(**json.loads(line))
            started = time.monotonic()
            texts, counts = run(workload)
            found = {"seconds": time.monotonic() - started, "texts": texts, "counts": counts}
            print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    main()
