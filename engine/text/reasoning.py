"""Separates a model's thinking from its answer, with vLLM's reasoning parsers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from daft_vllm.errors import OptionError, suggest

_CHANNEL = "<|channel|>"
_FINAL = "<|channel|>final<|message|>"
_MESSAGE = re.compile(r"<\|message\|>(.*?)(?=<\|end\|>|<\|start\|>|<\|channel\|>|$)", re.DOTALL)
"""Marks of Harmony, the format of gpt-oss (https://developers.openai.com/cookbook/articles/openai-harmony)."""


class Split(NamedTuple):
    """What a model thought, and what it answered. ``answer`` is None if the thinking never ended."""

    reasoning: str
    answer: str | None


def check_parser(name: str) -> None:
    """Raise ``OptionError`` for a parser that vLLM doesn't have. An empty name means no parser, and passes."""
    from vllm.reasoning import ReasoningParserManager

    known = ReasoningParserManager.list_registered()
    if name and name not in known:
        raise OptionError(f"vLLM has no reasoning parser {name!r}.{suggest(name, known)} It has {', '.join(known)}.")


class ReasoningSplitter:
    """Splits token ids where a model's thinking ends.

    Args:
        name: one of vLLM's reasoning parsers, ``"qwen3"`` for example.
        tokenizer: the model's tokenizer.
        model_config: vLLM's.

    Raises:
        OptionError: the parser can't be used with the tokenizer.
    """

    def __init__(self, name: str, tokenizer: Any, model_config: Any) -> None:
        from vllm.reasoning import ReasoningParserManager

        self._tokenizer = tokenizer
        self._arguments = {"model_config": model_config}
        try:
            self._class = ReasoningParserManager.get_reasoning_parser(name)
            self._class(tokenizer, **self._arguments)
        except (KeyError, RuntimeError, ValueError) as e:
            raise OptionError(f"reasoning_parser={name!r} can't be used with this model: {e}") from e

    def split(self, token_ids: Sequence[int]) -> Split:
        """Return the texts of both parts."""
        parser = self._class(self._tokenizer, chat_template_kwargs={"enable_thinking": True}, **self._arguments)
        ids = list(token_ids)
        whole = self._tokenizer.decode(ids, skip_special_tokens=False)
        try:
            answer = list(parser.extract_content_ids(ids))
            reasoning, text = parser.extract_reasoning(whole, None)
        except NotImplementedError:  # gpt-oss: vLLM reads its answers without a reasoning parser
            return self._split_channels(whole)
        if text is None:  # some parsers take thinking without end for an answer, if they see token ids only
            return Split(self._text(ids, parser), "" if parser.is_reasoning_end(ids) else None)
        if not answer and text != whole:  # these parsers read texts only
            return Split(self._plain(reasoning or ""), self._plain(text))
        if not answer and not parser.is_reasoning_end(ids):
            return Split(self._text(ids, parser), None)
        before = ids[: len(ids) - len(answer)]
        return Split(self._text(before, parser), self._tokenizer.decode(answer, skip_special_tokens=True).lstrip("\n"))

    def _split_channels(self, whole: str) -> Split:
        """Split an answer in OpenAI's Harmony format: messages, each with its channel."""
        thoughts, final, answer = whole.partition(_FINAL)
        if not final and _CHANNEL not in whole:
            return Split("", self._plain(whole))
        reasoning = "\n".join(self._plain(thought) for thought in _MESSAGE.findall(thoughts))
        return Split(reasoning, self._plain(answer) if final else None)

    def _plain(self, text: str) -> str:
        """Return a text without special tokens."""
        for token in self._tokenizer.all_special_tokens:
            text = text.replace(token, "")
        return text.strip("\n")

    def _text(self, token_ids: list[int], parser: Any) -> str:
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        for mark in (parser.reasoning_start_str, parser.reasoning_end_str):
            text = text.replace(mark, "") if mark else text
        return text.strip()
