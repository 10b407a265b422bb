"""How the model is asked: whether it thinks, and the arguments of its chat template."""

from __future__ import annotations

from typing import Any

from daft_vllm.engine import EngineConfig
from daft_vllm.engine.setup.config import reasoning_parser
from daft_vllm.errors import OptionError
from daft_vllm.model_configs import Prompting
from daft_vllm.udf.options import PromptOptions


def thinking_of(options: PromptOptions, engine: EngineConfig, *, is_parsed: bool) -> bool | None:
    """Return whether the prompt asks the model to think (True), not to think (False), or neither (None).

    Args:
        options: the options of ``prompt()``.
        engine: how the engine is started.
        is_parsed: whether the answer is more than a text.

    Raises:
        OptionError: the model should think, but the engine doesn't know where its thinking ends.
    """
    if options.thinking and not reasoning_parser(engine):
        raise OptionError(
            "thinking=True needs to know where this model's thinking ends: pass vLLM's name of the model's parser, "
            'engine_args={"reasoning_parser": "qwen3"} for example.'
        )
    if options.thinking is None and is_parsed and options.apply_chat_template is not False:
        # Otherwise the constraint would apply to the thinking, or a call that the model only considers would count.
        return False
    return options.thinking


def template_kwargs(options: PromptOptions, prompting: Prompting, thinking: bool | None) -> dict[str, Any] | None:
    """Return the arguments of the chat template: the model's own, replaced by the user's.

    If ``thinking`` is not None, the model's own arguments about thinking are left out.
    """
    kwargs = dict(prompting.chat_template_kwargs)
    if thinking is not None:
        for name in ("enable_thinking", "thinking"):
            kwargs.pop(name, None)
    return {**kwargs, **(options.chat_template_kwargs or {})} or None
