"""Lets one vLLM engine use both grammar libraries.

vLLM 0.32 takes one structured-output backend per engine. In its core process a plugin replaces xgrammar's backend by
the one in this module. It sends constraints that carry ``GUIDANCE_MARK`` to llguidance, and all others to xgrammar as
before. So two expressions, or two rows, can share a model although their constraints need different libraries.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

from daft_vllm.engine.constraints.libraries.guidance import GUIDANCE_MARK
from daft_vllm.engine.constraints.libraries.trial import parser_limits

_KEPT_GRAMMARS = 64


def register_backend() -> None:
    """Replace xgrammar's backend by this one. For vLLM's core process."""
    import vllm.v1.structured_output as structured_output

    structured_output.XgrammarBackend = _backend_class(structured_output.XgrammarBackend)


def _backend_class(xgrammar_backend: Any) -> Any:
    from vllm.v1.structured_output.backend_guidance import GuidanceBackend, GuidanceGrammar

    class HonestGrammar(GuidanceGrammar):  # type: ignore[misc]  # vLLM's types are not followed
        def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
            """Refuse tokens after an error. vLLM accepts them: the answer would end early, as if it were complete."""
            return bool(super().accept_tokens(request_id, tokens)) and not self.ll_matcher.is_error()

        def fill_bitmask(self, bitmask: Any, idx: int) -> None:
            """Fill a row of vLLM's masks: one bit for each logit.

            llguidance fills a row with a bit for each token of the tokenizer. Some models have more tokens than logits:
            Gemma-3 1B has 262,145 and 262,144. vLLM's GPU runner takes rows of the logits' width only.
            """
            import xgrammar

            tokens = self.ll_tokenizer.vocab_size
            if tokens <= 32 * bitmask.shape[1]:
                super().fill_bitmask(bitmask, idx)
                return
            wide = xgrammar.allocate_token_bitmask(1, tokens)
            super().fill_bitmask(wide, 0)
            bitmask[idx] = wide[0, : bitmask.shape[1]]

    class EitherBackend(xgrammar_backend):  # type: ignore[misc]  # vLLM's types are not followed
        def __post_init__(self) -> None:
            super().__post_init__()
            self._lock = threading.Lock()
            self._guidance: Any = None
            self._grammars: OrderedDict[str, Any] = OrderedDict()

        def compile_grammar(self, request_type: Any, grammar_spec: str, stop_token_ids: Any = None) -> Any:
            if not grammar_spec.startswith(GUIDANCE_MARK):
                return super().compile_grammar(request_type, grammar_spec, stop_token_ids=stop_token_ids)
            tokenizer, matcher = self._fresh_matcher(grammar_spec)
            return HonestGrammar(ll_matcher=matcher, ll_tokenizer=tokenizer, vocab_size=self.vocab_size)

        def _fresh_matcher(self, spec: str) -> tuple[Any, Any]:
            """Return a new matcher. A grammar is compiled once, for the first request that uses it."""
            import llguidance

            with self._lock:
                if self._guidance is None:
                    self._guidance = GuidanceBackend(self.vllm_config, self.tokenizer, self.vocab_size)
                tokenizer = self._guidance.ll_tokenizer
                if spec not in self._grammars:
                    text = spec.removeprefix(GUIDANCE_MARK)
                    matcher = llguidance.LLMatcher(tokenizer, text, log_level=1, limits=parser_limits())
                    if matcher.get_error():
                        raise ValueError(f"llguidance refused the grammar: {matcher.get_error()}")
                    self._grammars[spec] = matcher
                    if len(self._grammars) > _KEPT_GRAMMARS:
                        self._grammars.popitem(last=False)
                self._grammars.move_to_end(spec)
                return tokenizer, self._grammars[spec].deep_copy()

    return EitherBackend
