"""Texts of finished answers, made at once in place of token by token.

vLLM 0.32 makes an answer's text with every token, in its front end, and decodes the whole prompt several times for the
first two tokens: 0.3 ms for a row with 1,088 prompt tokens and 2.8 ms for one with 8,192, before what its own tokens
take (``test_detokenize.py`` says when that changes). Nobody reads an answer here before it is finished.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm import SamplingParams

    from daft_vllm.engine.requests.sampling import SamplingOptions

_CONTEXT = 8
"""Tokens of the prompt that an answer is decoded after: decoders drop a space at the start of a text."""

_INCOMPLETE = "\ufffd"
_MOST_TAKEN_BACK = 64
"""Tokens at the end of an answer that are looked at one by one: a character's bytes are four at most, but models that
are broken write many that are no character's."""


class Detokenizer:
    """Makes texts with a tokenizer of Hugging Face's ``tokenizers``; all else is left to vLLM.

    Args:
        tokenizer: the model's.
    """

    def __init__(self, tokenizer: Any) -> None:
        from vllm.v1.engine.detokenizer import uses_fast_detokenizer

        self._tokenizer: Any = tokenizer._tokenizer if uses_fast_detokenizer(tokenizer) else None

    def takes(self, sampling: SamplingOptions) -> bool:
        """Whether the text of such rows can be made at the end: none of its words stops the answer."""
        return self._tokenizer is not None and not sampling.stop and sampling.spaces_between_special_tokens

    def text(self, prompt: Sequence[int], answer: Sequence[int], params: SamplingParams, *, stopped: bool) -> str:
        """Return the text of an answer, as vLLM would have made it.

        Args:
            prompt: the prompt's token ids.
            answer: the answer's.
            params: the row's.
            stopped: whether the answer ended with a token that ends answers.
        """
        own = list(answer)
        if stopped and not params.include_stop_str_in_output:
            own = own[:-1]
        before = list(prompt[-_CONTEXT:])
        head = self._decoded(before, params)
        text = ""
        for _ in range(_MOST_TAKEN_BACK):
            whole = self._decoded(before + own, params)
            text = whole[len(head) :] if whole.startswith(head) else self._decoded(own, params)
            if not own or not text.endswith(_INCOMPLETE):
                break
            own.pop()  # the answer ended within a character, whose last bytes are missing
        return text.rstrip(_INCOMPLETE)

    def _decoded(self, token_ids: list[int], params: SamplingParams) -> str:
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=params.skip_special_tokens)
        return text
