"""Reads the tool calls in what a model wrote, with vLLM's own parsers."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from daft_vllm.engine.requests.outcome import ErrorValue, Outcome
from daft_vllm.engine.requests.toolbox import ToolAnswer, Toolbox, ToolCall
from daft_vllm.errors import OptionError, suggest

_BEGINS = re.compile(
    r"<tool_call>\s*(?=[{<]|\w+\s*[\n<])"  # Hermes, Qwen, GLM, Granite
    r"|<function=\w|<start_function_call>|<\|tool_call>?"
    r"|\[TOOL_CALLS\]|<\|python_tag\|>|<\|action_start\|>|(?:<\|tool_calls?(?:_section)?(?:_begin)?\|>|<tool_calls>)(?=\s*[\[{<\w])"
    r"|<\w+:tool_call>|<\uff5ctool\u2581calls?\u2581begin\uff5c>|<\uff5cDSML\uff5c|functools\s*\[|to=functions\."
)
"""Beginnings of calls in the formats that vLLM's parsers read. Text that only mentions one does not match."""
_LISTS = frozenset(("pythonic", "llama4_pythonic", "olmo3", "xlam", "phi4_mini_json"))
"""Parsers of formats in which a call is only a list."""
_HARMONY = "gpt_oss"


def check_tool_parser(name: str) -> None:
    """Raise ``OptionError`` for a parser that vLLM doesn't have."""
    from vllm.tool_parsers import ToolParserManager

    known = ToolParserManager.list_registered()
    if name not in known:
        raise OptionError(f"vLLM has no tool parser {name!r}.{suggest(name, known)} It has {', '.join(known)}.")


class ToolReader:
    """Reads calls, and the model's thinking if it comes before them.

    Args:
        tokenizer: the model's tokenizer.
        model_config: vLLM's.
        reasoning_parser: vLLM's name of the parser for the model's thinking. Empty: none.
    """

    def __init__(self, tokenizer: Any, model_config: Any, reasoning_parser: str = "") -> None:
        self._tokenizer = tokenizer
        self._model_config = model_config
        self._reasoning_parser = reasoning_parser
        self._definitions: dict[Toolbox, list[dict[str, Any]]] = {}
        self._kept: dict[tuple[Toolbox, bool], tuple[Any, Any, list[Any]]] = {}

    def keeps_special_tokens(self, toolbox: Toolbox, *, thinking: bool) -> bool:
        """Whether the text has to be read with its special tokens.

        Raises:
            OptionError: the parser can't be used with this model, or with these tools.
        """
        _, request, _ = self._parts(toolbox, thinking=thinking)
        return not request.skip_special_tokens

    def definitions(self, toolbox: Toolbox) -> list[dict[str, Any]]:
        """Return the tools as a chat template takes them."""
        if toolbox not in self._definitions:
            self._definitions[toolbox] = [json.loads(tool) for tool in toolbox.tools]
        return self._definitions[toolbox]

    def read(self, outcome: Outcome, token_ids: Sequence[int], toolbox: Toolbox, *, thinking: bool) -> Outcome:
        """Return the outcome with the calls in its text, or with an error if its text has a call that can't be read.

        An answer that was cut off is an error: the missing part could be a call.
        """
        if outcome.error is not None or outcome.text is None:
            return outcome
        if outcome.finish_reason == "length":
            error = ErrorValue("truncated", "the answer was cut off, and with it maybe a call: raise max_tokens")
            return outcome._replace(error=error)
        parser_class, request, tools = self._parts(toolbox, thinking=thinking)
        parser = self._parser(parser_class, tools, thinking=thinking)
        reasoning, content, calls = parser.parse(
            outcome.text, request, enable_auto_tools=True, model_output_token_ids=list(token_ids)
        )
        end = getattr(parser.reasoning_parser, "reasoning_end_str", None) if thinking else None
        ended = not end or end in outcome.text
        answer = outcome.text.partition(end)[2] if end and ended else outcome.text
        outcome = outcome._replace(reasoning=(reasoning or "").strip() if thinking else None)
        if not ended and not calls:
            error = ErrorValue("invalid_output", "the model's thinking never ended, and it gave no answer")
            return outcome._replace(error=error)
        if (mark := _unread(toolbox.parser, answer, len(calls or ()))) is not None:
            error = ErrorValue("invalid_output", f"the answer begins a call with {mark!r} that can't be read")
            return outcome._replace(error=error)
        found = tuple(ToolCall(call.name, call.arguments) for call in calls or ())
        return outcome._replace(tool_answer=ToolAnswer(content or None, found))

    def _parts(self, toolbox: Toolbox, *, thinking: bool) -> tuple[Any, Any, list[Any]]:
        """Return vLLM's parser class for these tools, the request that it gets, and the tools in vLLM's form."""
        if (toolbox, thinking) not in self._kept:
            from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
            from vllm.parser import ParserManager

            check_tool_parser(toolbox.parser)
            try:
                parser_class = ParserManager.get_parser(
                    tool_parser_name=toolbox.parser,
                    reasoning_parser_name=self._reasoning_parser if thinking else None,
                    enable_auto_tools=True,
                    model_name=self._model_config.model,
                    is_harmony=self._model_config.hf_config.model_type == _HARMONY,
                    tokenizer=self._tokenizer,
                )
                request = ChatCompletionRequest(
                    messages=[{"role": "user", "content": ""}],
                    tools=self.definitions(toolbox),
                    tool_choice="auto",
                )
                tools = list(request.tools or ())
                request = self._parser(parser_class, tools, thinking=thinking).adjust_request(request)
            except (KeyError, RuntimeError, TypeError, ValueError) as e:
                raise OptionError(f"tool_parser={toolbox.parser!r} can't be used with this model: {e}") from e
            self._kept[toolbox, thinking] = parser_class, request, tools
        return self._kept[toolbox, thinking]

    def _parser(self, parser_class: Any, tools: list[Any], *, thinking: bool) -> Any:
        """Return a new parser for one answer: parsers have a state."""
        kwargs = {"chat_template_kwargs": {"enable_thinking": True}} if thinking else {}
        return parser_class(self._tokenizer, tools, model_config=self._model_config, **kwargs)


def _unread(parser: str, text: str, calls: int) -> str | None:
    """Return the beginning of a call that the parser didn't read: vLLM's parsers only log such a call, or drop it.

    Args:
        parser: vLLM's name of the parser.
        text: the answer.
        calls: how many calls were read.
    """
    begins = [found[0].strip() for found in _BEGINS.finditer(text)]
    if begins and not calls:
        return begins[0]
    if text.count("<tool_call>") > max(calls, 1) and begins.count("<tool_call>") > calls:
        return "<tool_call>"
    if text.count("<function=") > text.count("</function>"):
        return "<function="
    if parser in _LISTS and not calls and re.match(r"\s*\[\s*[{\w]", text):
        return "["
    return None
