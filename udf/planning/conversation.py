"""How the model is asked: whether it thinks, and what its chat template is given."""

from __future__ import annotations

from typing import Any

from daft_vllm.engine import EngineConfig
from daft_vllm.engine.setup.config import reasoning_parser
from daft_vllm.errors import OptionError
from daft_vllm.model_configs import Prompting
from daft_vllm.udf.options import PromptOptions


def thinking_of(options: PromptOptions, engine: EngineConfig, *, is_parsed: bool) -> bool | None:
    """Return whether the model is told to think (True), not to (False), or nothing about it (None).

    Args:
        options: the options of ``prompt()``.
        engine: how the engine is started.
        is_parsed: whether the answer is more than a text.

    Raises:
        OptionError: the model is to think, and the engine doesn't know where its thinking ends.
    """
    if options.thinking and not reasoning_parser(engine):
        raise OptionError(
            "thinking=True needs to know where this model's thinking ends: pass vLLM's name of its parser, "
            'engine_args={"reasoning_parser": "qwen3"} for example.'
        )
    if options.thinking is None and is_parsed and options.apply_chat_template is not False:
        # Else the constraint would apply to the thinking, or a call that was only considered be taken for one.
        return False
    return options.thinking


def template_kwargs(options: PromptOptions, prompting: Prompting, thinking: bool | None) -> dict[str, Any] | None:
    """Return the arguments of the chat template: the model's, replaced by the user's, of which ``thinking`` is one."""
    kwargs = dict(prompting.chat_template_kwargs)
    if thinking is not None:
        for name in ("enable_thinking", "thinking"):
            kwargs.pop(name, None)
    return {**kwargs, **(options.chat_template_kwargs or {})} or None
