"""Makes the text of a finished answer at once, instead of token by token.

vLLM 0.32 extends an answer's text after every token, in its front end. For the first two tokens it decodes the whole
prompt several times: 0.3 ms for a row with 1,088 prompt tokens and 2.8 ms for one with 8,192, without the time for the
answer's own tokens. A test in ``test_detokenize.py`` fails when vLLM changes that. Here nobody reads an answer before
it is finished.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm import SamplingParams

    from daft_vllm.engine.requests.sampling import SamplingOptions

_CONTEXT = 8
"""How many of the prompt's last tokens are decoded before an answer: decoders drop a space at the start of a text."""

_INCOMPLETE = "\ufffd"
_MOST_TAKEN_BACK = 64
"""How many tokens may be removed from the end of an answer that ends inside a character. A character has four bytes at
most, but broken models write many bytes that belong to no character."""


class Detokenizer:
    """Makes texts with a tokenizer of Hugging Face's ``tokenizers``.

    All other texts are made by vLLM (see ``can_detokenize``).

    Args:
        tokenizer: the model's tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        from vllm.v1.engine.detokenizer import uses_fast_detokenizer

        self._tokenizer: Any = tokenizer._tokenizer if uses_fast_detokenizer(tokenizer) else None

    def can_detokenize(self, sampling: SamplingOptions) -> bool:
        """Whether the text of rows with these options can be made at the end: no words in the text stop the answer."""
        return self._tokenizer is not None and not sampling.stop and sampling.spaces_between_special_tokens

    def text(self, prompt: Sequence[int], answer: Sequence[int], params: SamplingParams, *, stopped: bool) -> str:
        """Return the text of an answer, as vLLM would have made it.

        Args:
            prompt: the prompt's token ids.
            answer: the answer's token ids.
            params: the row's sampling parameters.
            stopped: whether the last token of the answer is one that ends answers.
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
            own.pop()  # the answer ended inside a character: its last bytes are missing
        return text.rstrip(_INCOMPLETE)

    def _decoded(self, token_ids: list[int], params: SamplingParams) -> str:
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=params.skip_special_tokens)
        return text
