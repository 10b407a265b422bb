"""The format that every answer must have, and how the prompt describes it to the model."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from daft_vllm.engine.constraints.enforcement import enforcement_of
from daft_vllm.engine.constraints.shortest import shortest_answer
from daft_vllm.engine.requests.toolbox import Toolbox
from daft_vllm.engine.setup.preflight import check_constraint, local_tokenizer
from daft_vllm.errors import OptionError
from daft_vllm.model_configs import Prompting
from daft_vllm.udf.answers.describe import describe
from daft_vllm.udf.answers.return_format import ReturnFormat
from daft_vllm.udf.answers.tools import CallFormat, toolbox_of, tools_of
from daft_vllm.udf.options import PromptOptions

logger = logging.getLogger("daft_vllm")

_logged: set[str] = set()


class Answer(NamedTuple):
    """The format of the answers, and the tools that the chat template offers to the model, if any."""

    format: ReturnFormat
    toolbox: Toolbox | None

    @property
    def is_parsed(self) -> bool:
        """Whether an answer is more than a text."""
        return bool(self.format.constraints) or self.toolbox is not None


def answer_of(options: PromptOptions, prompting: Prompting) -> Answer:
    """Return the format of the answers and the tools.

    Args:
        options: the options of ``prompt()``.
        prompting: the model's own settings for prompts.

    Raises:
        OptionError: ``tools`` contradict another option.
        SchemaError: ``return_format``, or a tool's parameters, cannot be used.
    """
    enforced: dict[str, Any] = {"enforce": options.enforce, "backend": options.backend}
    if not options.tools:
        if options.tool_choice != "auto" or options.tool_parser is not None or not options.parallel_tool_calls:
            raise OptionError("tool_choice, tool_parser and parallel_tool_calls need tools=[...], which is empty.")
        return Answer(ReturnFormat.of(options.return_format, **enforced), None)
    if options.return_format is not None:
        raise OptionError("tools and return_format exclude each other, because tools give a struct of calls: pass one.")
    if options.apply_chat_template is False:
        raise OptionError("tools need the chat template. Without it, use return_format=Tools([...]).")
    tools = tools_of(options.tools)
    calls = CallFormat.of_tools(tools, options.tool_choice, parallel=options.parallel_tool_calls, **enforced)
    chosen_by_model = options.tool_choice == "auto"
    toolbox = toolbox_of(tools, options.tool_parser or prompting.tool_parser) if chosen_by_model else None
    return Answer(calls, toolbox)


def check_format(form: ReturnFormat, tokenizer_of: str | None) -> None:
    """Raise ``SchemaError`` for a format that can't be enforced.

    Args:
        form: the format.
        tokenizer_of: the model that has the tokenizer for which the grammars are compiled. None: they are not compiled,
            because that would import torch into this process.
    """
    for constraint in form.constraints:
        if tokenizer_of is None:
            enforcement_of(constraint, build=False)
        else:
            check_constraint(constraint, tokenizer_of)


def preambles_of(form: ReturnFormat) -> dict[str | None, str | None]:
    """Return the descriptions of the formats for the prompt, by the format's name."""
    if form.constraint is not None:
        return {None: describe(form.constraint)}
    return {name: describe(one.constraint) for name, one in form.forms.items() if one.constraint is not None}


def warn_about_format(form: ReturnFormat, max_tokens: int | None, tokenizer_of: str | None) -> None:
    """Log, before hours of work, which parts of an answer are JSON text, and warn if ``max_tokens`` is too small.

    Args:
        form: the format.
        max_tokens: the most tokens of an answer. None: each row has its own limit.
        tokenizer_of: see ``check_format``.
    """
    if form.json_text and (parts := ", ".join(form.json_text)) not in _logged:
        _logged.add(parts)
        logger.info("these parts of the answer are JSON text in the column, since no column type fits them: %s", parts)
    tokenizer = local_tokenizer(tokenizer_of) if tokenizer_of is not None and form.constraints else None
    if tokenizer is None or max_tokens is None:
        return
    shortest = [text for text in map(shortest_answer, form.constraints) if text]
    # One more token ends the text.
    least = max((len(tokenizer(text, add_special_tokens=False)["input_ids"]) + 1 for text in shortest), default=0)
    if max_tokens < least:
        logger.warning(
            "max_tokens=%d is too few: the shortest answer that satisfies return_format has about %d tokens, and rows "
            "will be cut off. Try max_tokens=%d.",
            max_tokens,
            least,
            4 * least + 64,
        )
