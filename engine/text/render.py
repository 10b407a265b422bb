"""From requests to token ids: chat template, tokenizer, length check."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from daft_vllm.engine.requests.content import (
    MEDIA_KINDS,
    Conversation,
    Media,
    MediaKind,
    Message,
    media_digest,
    media_of,
    merge_texts,
)
from daft_vllm.engine.requests.outcome import NO_PROMPT, Outcome
from daft_vllm.engine.requests.prepared import Prepared, pack_tokens
from daft_vllm.engine.requests.request import Request, Truncation, options_digest
from daft_vllm.engine.requests.toolbox import Toolbox
from daft_vllm.engine.setup.config import EngineConfig, reasoning_parser
from daft_vllm.engine.setup.sampling_rules import check_sampling
from daft_vllm.engine.text.detokenize import Detokenizer
from daft_vllm.engine.text.guard import TokenGuard
from daft_vllm.engine.text.params import end_of_text, row_seed, sampling_params, with_seed
from daft_vllm.engine.text.tokenize import Tokenizer
from daft_vllm.engine.text.tools import ToolReader
from daft_vllm.errors import ModelError, OptionError

if TYPE_CHECKING:
    from vllm import SamplingParams


_NUMBERED = 8
"""How many placeholders of each kind of media are guarded, if placeholders are numbered (``<|image_1|>``)."""
_SHORTEN = "shorten it, raise max_model_len in engine_args, or pass truncate_prompt_tokens=-1"
_OPENAI_TYPES = {"image": "image_pil", "audio": "audio_url", "video": "video_url"}


class RequestRenderer:
    """Turns requests into prepared rows with vLLM's own chat-template code and one tokenizer call for all of them.

    Callers render in their own threads, one at a time, so that the engine's thread is free for generation.

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
        tokenizer = renderer.get_tokenizer()
        if getattr(tokenizer, "IS_MISTRAL_TOKENIZER", False):
            raise ModelError(
                f"{config.model!r} was started with Mistral's own tokenizer, with which prompts can't be guarded: "
                'leave tokenizer_mode out, or pass engine_args={"tokenizer": "owner/name"} with a tokenizer.json.'
            )
        self._tools = ToolReader(tokenizer, renderer.model_config, reasoning_parser(config))
        self._detokenizer = Detokenizer(tokenizer)
        end = renderer.get_eos_token_id()
        self._ends = end_of_text(renderer.model_config) | ({end} if end is not None else set())
        template = self._template()
        self.has_chat_template = template is not None
        # Some tokenizers have another template for chats with tools.
        self._tool_template = self._template([{}]) if template is not None else None
        template_texts = None if template is None else f"{template}{self._tool_template}"
        # A longer text has too many tokens. Tokenizing 10 million characters takes 10 to 20 s, and 600 MB of memory.
        self._most_characters = 2 * max_model_len * max(map(len, tokenizer.get_vocab()))
        self._tokenizer = Tokenizer(tokenizer)
        self._guard = TokenGuard(tokenizer, template_texts, self._placeholders(), self._tokenizer)
        self._truncation = Truncation(config.truncate_prompt_tokens, config.truncation_side)
        self.check_truncation(self._truncation)

    def check_chat_template(self) -> None:
        """Raise ``ModelError`` if this model has no chat template and none was passed."""
        if not self.has_chat_template:
            raise ModelError(
                f"the model {self._config.model!r} has no chat template: base models have none. Pass "
                "apply_chat_template=False to send single texts as they are, or chat_template= with Jinja text."
            )

    def check_truncation(self, truncation: Truncation) -> None:
        """Raise ``OptionError`` if prompts would be cut to more tokens than the context takes."""
        limit = truncation.tokens
        if limit is not None and limit > self.max_prompt_tokens:
            raise OptionError(
                f"truncate_prompt_tokens={limit} does not fit: the context is {self.max_prompt_tokens + 1} tokens, "
                f"one of them for the answer. Use at most {self.max_prompt_tokens}, or -1."
            )

    def takes(self, kind: MediaKind) -> bool:
        """Whether this model takes media of a kind."""
        return bool(self._limits().get(kind))

    def check_media(self, kinds: Iterable[MediaKind]) -> None:
        """Raise ``ModelError`` if this model doesn't take one of ``kinds``."""
        for kind in kinds:
            if not self.takes(kind):
                takes = ", ".join(f"{name}s" for name, limit in self._limits().items() if limit) or "text"
                raise ModelError(
                    f"the model {self._config.model!r} takes no {kind}s, but {takes}: use another model, or leave the "
                    f"{kind} column out of the prompt."
                )

    def check_tools(self, toolbox: Toolbox, *, thinking: bool) -> None:
        """Raise an error if this model's chat template can't list tools, or the model's calls can't be read.

        Raises:
            ModelError: its chat template has no place for tools.
            OptionError: the parser can't be used with this model, or with these tools.
        """
        if not re.search(r"\btools\b", self._tool_template or ""):
            raise ModelError(
                f"the chat template of the model {self._config.model!r} has no place for tools. Use another model, "
                'pass chat_template=, or tool_choice="required", which describes the tools in the prompt.'
            )
        self._tools.keeps_special_tokens(toolbox, thinking=thinking)

    def _limits(self) -> Mapping[str, int | None]:
        processor = self._renderer.mm_processor
        limits: Mapping[str, int | None] = processor.info.allowed_mm_limits if processor is not None else {}
        return limits

    def prepare(self, requests: Sequence[Request]) -> list[Prepared | Outcome]:
        """Return, for each request in order, the row for vLLM, or the outcome of a row that cannot be sent."""
        rows: list[Prepared | Outcome | None] = [None] * len(requests)
        texts: list[str] = []
        indices: list[int] = []
        for i, request in enumerate(requests):
            try:
                if request.prompt == ():
                    rows[i] = Outcome.failed("empty_prompt", "the prompt contains neither text nor media")
                    continue
                if request.prompt is None:
                    rows[i] = NO_PROMPT
                    continue
                if request.thinking and not self._can_think:
                    rows[i] = Outcome.failed("invalid_request", "thinking needs reasoning_parser in engine_args")
                    continue
                if request.adapter is not None and request.adapter not in self._config.adapters:
                    rows[i] = Outcome.failed("invalid_request", f"the engine has no adapter {request.adapter!r}")
                    continue
                request = self._shortened(request)
                text = self._chat_text(request) if self._is_chat(request) else self._raw_text(request)
                if len(text) > self._most_characters:
                    rows[i] = Outcome.failed(
                        "prompt_too_long",
                        f"the prompt has {len(text)} characters, and the context takes {self.max_prompt_tokens} tokens "
                        f"and an answer: {_SHORTEN}",
                    )
                    continue
                texts.append(_encodable(text))
                indices.append(i)
            except Exception as e:
                rows[i] = Outcome.failed("invalid_prompt", f"the prompt could not be rendered: {e}")
        media = {i: media_of(requests[i].messages()) for i in indices if _may_hold_media(requests[i])}
        by_options: dict[tuple[object, ...], tuple[SamplingParams, bytes]] = {}
        for i, token_ids in zip(indices, self._tokenize(texts, [requests[i] for i in indices]), strict=True):
            request = requests[i]
            try:
                token_ids = self._truncated(request, token_ids)
            except Exception as e:  # it renders the row again
                rows[i] = Outcome.failed("invalid_prompt", f"the prompt could not be rendered: {e}")
                continue
            if not token_ids:
                rows[i] = Outcome.failed("empty_prompt", "the prompt has no tokens")
            elif len(token_ids) > self.max_prompt_tokens:
                rows[i] = Outcome.failed(
                    "prompt_too_long",
                    f"the prompt has {len(token_ids)} tokens, the context takes {self.max_prompt_tokens} and an answer"
                    f": {_SHORTEN}",
                    prompt_tokens=len(token_ids),
                )
            else:
                key = (
                    *(id(request.sampling), id(request.constraint), id(request.toolbox)),
                    *(request.thinking, request.own_seed, request.draft),
                )
                try:
                    if key not in by_options:
                        by_options[key] = self._params(request), _options_digest(request)
                except Exception as e:  # whatever vLLM finds wrong with the options is this row's error
                    rows[i] = Outcome.failed("invalid_request", str(e), prompt_tokens=len(token_ids))
                    continue
                params, options_digest = by_options[key]
                constrained = request.constraint is not None
                items = media.get(i, ())
                if items and self._config.reproducible:
                    why = "reproducible=True is for text, and this row has pictures or sounds"
                    rows[i] = Outcome.failed("invalid_request", why, prompt_tokens=len(token_ids))
                    continue
                packed, seen = pack_tokens(token_ids), media_digest(items, request.adapter)
                if request.own_seed and params.seed is not None:
                    params = with_seed(params, row_seed(params.seed, packed, seen))
                rows[i] = Prepared(
                    packed,
                    params,
                    constrained,
                    options_digest,
                    seen,
                    request.thinking,
                    items,
                    request.toolbox,
                    request.adapter,
                )
        return [row for row in rows if row is not None]

    def _is_chat(self, request: Request) -> bool:
        asked = request.apply_chat_template
        return self.has_chat_template if asked is None else asked

    def _params(self, request: Request) -> SamplingParams:
        sampling, toolbox = request.sampling, request.toolbox
        if toolbox is not None and self._tools.keeps_special_tokens(toolbox, thinking=bool(request.thinking)):
            sampling = sampling.replace({"skip_special_tokens": False})
        check_sampling(
            sampling.model_dump(),
            constrained=request.constraint is not None,
            choices=request.constraint.choices if request.constraint is not None else None,
            gpus=self._config.gpus,
            vocabulary=self._renderer.model_config.get_vocab_size(),
            tokenizer=self._renderer.get_tokenizer(),
            ends=self._ends,
        )
        if self._config.reproducible and not sampling.is_determined:
            raise OptionError("reproducible=True needs a seed in every row with a temperature above 0.")
        return sampling_params(
            sampling,
            request.constraint,
            detokenize=not self._detokenizer.can_detokenize(sampling),
            draft=request.draft,
        )

    def _template(self, tools: list[dict[str, Any]] | None = None) -> str | None:
        """Return the chat template's text, None where there is none."""
        from vllm.renderers.hf import resolve_chat_template

        template: str | None = resolve_chat_template(
            self._renderer.get_tokenizer(), self._config.chat_template, tools, model_config=self._renderer.model_config
        )
        return template

    def _placeholder(self, kind: str, number: int) -> str:
        """Return the placeholder of a prompt's medium ``number`` of a kind. Empty: the model has none."""
        from vllm.model_executor.model_loader import get_model_cls

        text: str | None = get_model_cls(self._renderer.model_config).get_placeholder_str(kind, number)
        return text or ""

    def _placeholders(self) -> list[str]:
        kinds = [kind for kind in MEDIA_KINDS if self.takes(kind)]
        return [self._placeholder(kind, number) for kind in kinds for number in range(1, _NUMBERED + 1)]

    def _chat_text(self, request: Request) -> str:
        from vllm.renderers.params import ChatParams

        continues_answer = isinstance(request.prompt, Conversation) and request.prompt.continues_answer
        kwargs = {
            "add_generation_prompt": not continues_answer,
            "continue_final_message": continues_answer,
            "tokenize": False,
            # Templates of Qwen and Gemma use the first name, of DeepSeek and Granite the second. Others ignore both.
            **({} if request.thinking is None else dict.fromkeys(("enable_thinking", "thinking"), request.thinking)),
            **({} if request.toolbox is None else {"tools": self._tools.definitions(request.toolbox)}),
            **(request.chat_template_kwargs or {}),
        }
        _, prompt = self._renderer.render_messages(
            [self._as_openai(message) for message in request.messages()],
            ChatParams(chat_template=self._config.chat_template, chat_template_kwargs=kwargs),
        )
        text: str = prompt["prompt"]
        if request.thinking is False and not continues_answer:
            text += self._config.no_thinking_text
        return text

    def _as_openai(self, message: Message) -> dict[str, Any]:
        """Return a message as vLLM takes it. Media are only named here: vLLM gets them later, with the tokens."""
        assistant = message.role == "assistant"
        content: Any = [
            {"type": "text", "text": self._guard.hide_markers(part, assistant=assistant)}
            if isinstance(part, str)
            else {"type": _OPENAI_TYPES[part.kind], _OPENAI_TYPES[part.kind]: None, "uuid": part.digest.hex()}
            for part in merge_texts(message.content)
        ]
        if len(content) == 1 and content[0]["type"] == "text":
            content = content[0]["text"]
        fields = dict(message.fields)
        if "tool_calls" in fields:
            fields["tool_calls"] = [_with_parsed_arguments(call) for call in fields["tool_calls"]]
        role = self._guard.hide_markers(message.role)
        return {"role": role, "content": content, **self._guard.hide_markers(fields, assistant=assistant)}

    def _raw_text(self, request: Request) -> str:
        """Return a prompt that is sent without the chat template, with a placeholder at the place of each medium."""
        if isinstance(request.prompt, Conversation):
            raise ValueError("a conversation needs the chat template: leave apply_chat_template at True")
        if isinstance(request.prompt, str | None):
            return request.prompt or ""
        count: dict[str, int] = {}
        pieces = []
        for part in request.prompt:
            if isinstance(part, Media):
                count[part.kind] = count.get(part.kind, 0) + 1
                pieces.append(self._placeholder(part.kind, count[part.kind]))
            else:
                pieces.append(part)
        return "".join(pieces)

    def _tokenize(self, texts: list[str], requests: list[Request]) -> list[list[int]]:
        """Tokenize all texts, chats apart from other texts: chat templates write the special tokens themselves."""
        result: list[list[int]] = [[]] * len(texts)
        chats = [i for i, request in enumerate(requests) if self._is_chat(request)]
        for i, token_ids in zip(chats, self._guard.tokenize([texts[i] for i in chats]), strict=True):
            result[i] = token_ids
        raw = [i for i, request in enumerate(requests) if not self._is_chat(request)]
        if raw:
            for i, token_ids in zip(raw, self._tokenizer([texts[i] for i in raw], special_tokens=True), strict=True):
                result[i] = token_ids
        return result

    def _shortened(self, request: Request) -> Request:
        """Drop what ``_truncated`` would drop in any case, of a text so long that tokenizing it takes much memory."""
        prompt, most = request.prompt, self._most_characters
        limit, keep_end = self._cut_of(request)
        if limit is None or not isinstance(prompt, str) or len(prompt) <= most // 2:
            return request
        return replace(request, prompt=prompt[-(most // 2) :] if keep_end else prompt[: most // 2])

    def _cut_of(self, request: Request) -> tuple[int | None, bool]:
        """Return how many tokens a prompt may have, None for any number, and whether its end is kept."""
        asked = request.truncation or self._truncation
        return self.max_prompt_tokens if asked.tokens == -1 else asked.tokens, asked.side == "left"

    def _truncated(self, request: Request, token_ids: list[int]) -> list[int]:
        """Cut the user's text until the whole prompt fits; the template around it stays whole."""
        limit, keep_end = self._cut_of(request)
        if limit is None or len(token_ids) <= limit or not isinstance(request.prompt, str):
            return token_ids
        if not self._is_chat(request):
            return token_ids[-limit:] if keep_end else token_ids[:limit]
        tokenizer = self._renderer.get_tokenizer()
        user_ids: list[int] = tokenizer(request.prompt, add_special_tokens=False)["input_ids"]
        while user_ids and len(token_ids) > limit:
            # A cut text may have a token more when it is tokenized again, hence the loop.
            excess = min(len(user_ids), len(token_ids) - limit)
            user_ids = user_ids[excess:] if keep_end else user_ids[: len(user_ids) - excess]
            text = self._chat_text(replace(request, prompt=tokenizer.decode(user_ids)))
            (token_ids,) = self._guard.tokenize([text])
        return token_ids


def _with_parsed_arguments(call: Any) -> Any:
    """Return a tool call with its arguments parsed. In JSON text, escapes could hide a marker."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    return {**call, "function": {**function, "arguments": json.loads(function["arguments"] or "{}")}}


def _may_hold_media(request: Request) -> bool:
    return bool(request.examples) or not isinstance(request.prompt, str)


def _options_digest(request: Request) -> bytes:
    """Return a digest of everything but the prompt that determines the answer. Empty: the answer is drawn at random."""
    return options_digest(request) if request.sampling.is_determined else b""


def _encodable(text: str) -> str:
    """Return ``text``, or raise if it contains lone surrogates, which no tokenizer takes."""
    text.encode("utf-8")
    return text
