"""From requests to token ids: chat template, tokenizer, length check."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from daft_vllm.engine.config import EngineConfig, reasoning_parser
from daft_vllm.engine.prefix import pack_tokens
from daft_vllm.engine.request import Outcome, Request
from daft_vllm.engine.rows import Prepared
from daft_vllm.errors import ModelError, OptionError, SchemaError

if TYPE_CHECKING:
    from vllm import SamplingParams


class RequestRenderer:
    """Turns requests into prepared rows with vLLM's own chat-template code and one tokenizer call for all of them.

    Thread-safe: callers render in their own threads, so that the engine's thread is kept for generation.

    Args:
        renderer: vLLM's renderer, from ``AsyncLLM.renderer``.
        max_model_len: the model's context in tokens, prompt and answer together.
    """

    def __init__(self, config: EngineConfig, renderer: Any, max_model_len: int) -> None:
        self._config = config
        self._renderer = renderer
        # One token of the context has to be left for the answer.
        self.max_prompt_tokens = max_model_len - 1
        self._can_think = bool(reasoning_parser(config))
        limit = config.truncate_prompt_tokens
        if limit is not None and limit > self.max_prompt_tokens:
            raise OptionError(
                f"truncate_prompt_tokens={limit} does not fit: the context is {max_model_len} tokens, "
                f"one of them for the answer. Use at most {self.max_prompt_tokens}, or -1."
            )
        self._truncate_to = self.max_prompt_tokens if limit == -1 else limit

    def check_chat_template(self) -> None:
        """Raise ``ModelError`` if this model has no chat template and none was passed."""
        from vllm.renderers.chat_utils import ChatTemplateResolutionError

        try:
            self._chat_text(Request("hello"))
        except ChatTemplateResolutionError as e:
            raise ModelError(
                f"the model {self._config.model!r} has no chat template: base models have none. Pass "
                "apply_chat_template=False to send the prompts as they are, or chat_template= with Jinja text."
            ) from e

    def prepare(self, requests: Sequence[Request]) -> list[Prepared | Outcome]:
        """Return, for each request in order, the row for vLLM, or the outcome of a row that cannot be sent."""
        rows: list[Prepared | Outcome | None] = [None] * len(requests)
        texts: list[str] = []
        where: list[int] = []
        for i, request in enumerate(requests):
            try:
                if request.prompt is None:
                    rows[i] = Outcome.failed("null_prompt", "the prompt is null")
                    continue
                if request.thinking and not self._can_think:
                    rows[i] = Outcome.failed("invalid_request", "thinking needs reasoning_parser in engine_args")
                    continue
                text = self._chat_text(request) if request.apply_chat_template else request.prompt
                texts.append(_encodable(text))
                where.append(i)
            except Exception as e:
                rows[i] = Outcome.failed("invalid_prompt", f"the prompt could not be rendered: {e}")
        recipes: dict[tuple[int, int], tuple[SamplingParams, bytes]] = {}
        for i, token_ids in zip(where, self._tokenize(texts, [requests[i] for i in where]), strict=True):
            request = requests[i]
            token_ids = self._truncated(request, token_ids)
            if not token_ids:
                rows[i] = Outcome.failed("empty_prompt", "the prompt holds no token")
            elif len(token_ids) > self.max_prompt_tokens:
                rows[i] = Outcome.failed(
                    "prompt_too_long",
                    f"the prompt has {len(token_ids)} tokens, the context takes {self.max_prompt_tokens} and an answer"
                    ": shorten it, raise max_model_len in engine_args, or pass truncate_prompt_tokens=-1",
                    prompt_tokens=len(token_ids),
                )
            else:
                key = (id(request.sampling), id(request.constraint))
                try:
                    if key not in recipes:
                        recipes[key] = (
                            request.sampling.to_vllm(request.constraint),
                            _recipe(request),
                        )
                except SchemaError as e:
                    rows[i] = Outcome.failed("invalid_request", str(e), prompt_tokens=len(token_ids))
                    continue
                params, recipe = recipes[key]
                guided = request.constraint is not None
                rows[i] = Prepared(pack_tokens(token_ids), params, guided, recipe, thinking=request.thinking)
        return [row for row in rows if row is not None]

    def _chat_text(self, request: Request) -> str:
        from vllm.renderers.params import ChatParams

        kwargs = {
            "add_generation_prompt": True,
            "tokenize": False,
            # The names that templates give it: Qwen's and Gemma's, DeepSeek's and Granite's. Others ignore them.
            **({} if request.thinking is None else dict.fromkeys(("enable_thinking", "thinking"), request.thinking)),
            **(request.chat_template_kwargs or {}),
        }
        _, prompt = self._renderer.render_messages(
            request.messages(),
            ChatParams(chat_template=self._config.chat_template, chat_template_kwargs=kwargs),
        )
        text: str = prompt["prompt"]
        return text

    def _tokenize(self, texts: list[str], requests: list[Request]) -> list[list[int]]:
        """Tokenize all texts, in at most two calls: chat templates write the special tokens themselves."""
        result: list[list[int]] = [[]] * len(texts)
        for chat in (True, False):
            chosen = [i for i, request in enumerate(requests) if request.apply_chat_template == chat]
            if chosen:
                encoded = self._renderer.get_tokenizer()([texts[i] for i in chosen], add_special_tokens=not chat)
                for i, token_ids in zip(chosen, encoded["input_ids"], strict=True):
                    result[i] = token_ids
        return result

    def _truncated(self, request: Request, token_ids: list[int]) -> list[int]:
        """Cut the user's text until the whole prompt fits; the template around it stays whole."""
        limit = self._truncate_to
        if limit is None or len(token_ids) <= limit:
            return token_ids
        keep_end = self._config.truncation_side == "left"
        if not request.apply_chat_template:
            return token_ids[-limit:] if keep_end else token_ids[:limit]
        tokenizer = self._renderer.get_tokenizer()
        own: list[int] = tokenizer(request.prompt, add_special_tokens=False)["input_ids"]
        while own and len(token_ids) > limit:
            # Cut text may come out a token longer than it went in, hence the loop.
            excess = min(len(own), len(token_ids) - limit)
            own = own[excess:] if keep_end else own[: len(own) - excess]
            text = self._chat_text(replace(request, prompt=tokenizer.decode(own)))
            token_ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        return token_ids


def _recipe(request: Request) -> bytes:
    """Return a digest of what determines the answer besides the prompt; empty if it is drawn at random."""
    if request.sampling.temperature > 0 and request.sampling.seed is None:
        return b""
    return hashlib.blake2b(repr((request.sampling, request.constraint)).encode(), digest_size=16).digest()


def _encodable(text: str) -> str:
    """Return ``text``, or raise if it holds lone surrogates, which no tokenizer takes."""
    text.encode("utf-8")
    return text
