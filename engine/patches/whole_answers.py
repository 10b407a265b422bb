"""Lets vLLM's core send an answer's tokens when it is complete, in place of one message for each token.

Nobody here reads an answer before it is complete. vLLM 0.32 drops what comes before only in its front end, after it has
received and read it: 15 us for each token (``python -m benchmarks.parts.front_end``). One front end serves all engines
of a process, so this would limit how many.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

_SENT = "_daft_vllm_sent"
_BESIDE_TOKENS = (
    "new_logprobs",
    "new_prompt_logprobs_tensors",
    "pooling_output",
    "finish_reason",
    "stop_reason",
    "events",
    "kv_transfer_params",
    "ec_transfer_params",
    "prefill_stats",
    "routed_experts",
    "mm_cache_miss_hashes",
    "new_sampling_mask",
    "prompt_token_id_logprobs",
)
"""What an output may have besides tokens. Outputs that have some of it are sent at once."""
_SENT_WITH_TOKENS = ("request_id", "new_token_ids", "trace_headers", "num_nans_in_logits", "spec_decode_metrics")
"""What each output has, or only the last one."""


def send_whole_answers() -> None:
    """Let the scheduler of this process keep tokens until there is more to send. For vLLM's core process."""
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine import EngineCoreOutput

    if unknown := {*EngineCoreOutput.__struct_fields__} - {*_BESIDE_TOKENS, *_SENT_WITH_TOKENS}:
        raise AttributeError(f"vLLM's outputs have more than is known: {', '.join(sorted(unknown))}")
    beside_tokens = attrgetter(*_BESIDE_TOKENS)
    theirs = Scheduler.update_from_output

    @functools.wraps(theirs)
    def update_from_output(self: Any, scheduler_output: Any, model_runner_output: Any) -> Any:
        # Before the call, which forgets the requests that end.
        requests = {name: self.requests.get(name) for name in scheduler_output.num_scheduled_tokens}
        found = theirs(self, scheduler_output, model_runner_output)
        for one in found.values():
            one.outputs = [output for output in one.outputs if _is_sent(output, requests)]
        return found

    def _is_sent(output: Any, requests: Mapping[str, Any]) -> bool:
        """Whether to send an output now. If so, it gets the tokens that weren't sent before."""
        request: Any = requests.get(output.request_id)
        if request is None or request.sampling_params is None:
            return True
        params = request.sampling_params
        # vLLM's front end looks for texts that end an answer, so it needs each token.
        if params.output_kind is not RequestOutputKind.FINAL_ONLY or params.stop:
            return True
        if all(value is None for value in beside_tokens(output)):
            return False
        sent = request.__dict__.get(_SENT, 0)
        tokens = request.output_token_ids
        if len(tokens) - sent != len(output.new_token_ids):
            output.new_token_ids = list(tokens[sent:])
        request.__dict__[_SENT] = len(tokens)
        return True

    Scheduler.update_from_output = update_from_output
