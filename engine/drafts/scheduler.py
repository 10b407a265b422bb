"""vLLM's scheduler, with guesses. For vLLM's core process: it imports vLLM."""

from __future__ import annotations

import time
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler

from daft_vllm.engine.drafts.changes import is_changed
from daft_vllm.engine.drafts.drafter import Drafter, Row, Writing
from daft_vllm.engine.drafts.grammar import NOTHING, Forced, forced_by
from daft_vllm.engine.drafts.start import OFF


class DraftingScheduler(Scheduler):  # type: ignore[misc]  # vLLM's types are not followed
    """Sends guesses with the rows whose tokens are computed next. vLLM verifies them, and drops wrong ones."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if not is_changed():
            raise RuntimeError("vLLM's sampler is not changed: rows beside those with guesses would be sampled wrongly")
        self._drafter = Drafter(self._plain)
        self._rows: dict[str, Row] = {}
        self._plains: dict[int, int] = {}
        self._began = 0.0

    def schedule(self, *args: Any, **options: Any) -> Any:
        """Note when a step begins."""
        self._began = time.perf_counter()
        return super().schedule(*args, **options)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Learn from the tokens of a step, and from what it took."""
        requests = [(name, self.requests.get(name)) for name in scheduler_output.num_scheduled_tokens]
        found = super().update_from_output(scheduler_output, model_runner_output)
        guesses = sum(map(len, scheduler_output.scheduled_spec_decode_tokens.values()))
        answers = len(requests) + guesses
        prompt = scheduler_output.total_num_scheduled_tokens - answers
        self._drafter.times.add(prompt, answers, time.perf_counter() - self._began, guessed=guesses > 0)
        for name, request in requests:
            if request is not None:
                self._observe(name, request)
        for name in scheduler_output.finished_req_ids:
            self._rows.pop(name, None)
        return found

    def update_draft_token_ids(self, draft_token_ids: Any) -> None:
        """Give each row that writes its answer the guesses of its next tokens."""
        writing = [self.requests.get(name) for name in draft_token_ids.req_ids]
        writing = [one for one in writing if one is not None and not one.is_finished() and not one.is_prefill_chunk]
        for request in writing:
            request.spec_token_ids = []
        if self.kv_cache_manager.block_pool.get_num_free_blocks() < 2 * len(writing):
            return  # guesses would take the place of rows
        # At most half of what a step has room for: the rest is for prompts.
        room = (self.max_num_scheduled_tokens - len(writing)) // 2
        share = min(self.num_spec_tokens, room // max(1, len(writing)))
        found = []
        for request in writing:
            row = self._rows.get(request.request_id)
            most = min(share, request.max_tokens - request.num_output_tokens - 1)
            if row is None or not (row.is_drafted and row.is_followed) or most <= 0:
                continue
            if (grammar := self._grammar_of(request)) is not None:
                found.append((request, Writing(row, grammar, most)))
        guesses = self._drafter.draft([one for _, one in found], len(writing))
        for (request, _), tokens in zip(found, guesses, strict=True):
            request.spec_token_ids = tokens

    def _observe(self, name: str, request: Any) -> None:
        row = self._rows.get(name)
        if row is None:
            row = self._drafter.new_row(_constraint_of(request), request.prompt_token_ids or ())
            row.is_drafted = request.use_structured_output and _is_drafted(request.sampling_params)
            # Answers without a format repeat too little: with 64 sequences they took 9% longer with guesses.
            row.is_followed = row.is_followed and request.use_structured_output
            self._rows[name] = row
        if row.is_followed and (tokens := request.output_token_ids[row.seen :]):
            grammar = NOTHING if request.is_finished() else self._grammar_of(request)
            self._drafter.observe(row, tokens, grammar or NOTHING)
        if request.is_finished():
            self._rows.pop(name, None)

    def _grammar_of(self, request: Any) -> Forced | None:
        """Return what constrains a request now. None: something that isn't known here."""
        if not request.use_structured_output:
            return NOTHING
        if self.structured_output_manager._get_constraint_bounds(request, ()).constraint_start > 0:
            return NOTHING  # it still thinks
        return forced_by(request.structured_output_request.grammar)

    def _plain(self, token: int) -> int:
        """Return the token of the same text without a space before it."""
        found = self._plains.get(token)
        if found is None:
            tokenizer = self.structured_output_manager.tokenizer
            piece = tokenizer.convert_ids_to_tokens(token) or ""
            found = token
            if len(piece) > 1 and piece[0] in "Ġ▁":
                other = tokenizer.convert_tokens_to_ids(piece[1:])
                if other is not None and other != tokenizer.unk_token_id:
                    found = other
            self._plains[token] = found
        return found


def _constraint_of(request: Any) -> str:
    """Return a text that is the same for rows that are expected to write alike."""
    structured = request.structured_output_request
    adapter = request.lora_request.lora_name if request.lora_request is not None else ""
    return f"{adapter}\0{structured.structured_output_key[1] if structured is not None else ''}"


def _is_drafted(params: Any) -> bool:
    """Whether a request gets guesses, by its sampling parameters.

    With a seed it would draw other numbers. The options after that are not applied to guesses, or in another way.
    """
    return (
        params is not None
        and (params.temperature == 0 or params.seed is None)
        and not (params.extra_args or {}).get(OFF)
        and not params.min_p
        and not params.logit_bias
        and not params.bad_words
        and params.logprobs is None
        and params.thinking_token_budget is None
    )
