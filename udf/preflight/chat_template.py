"""Checks of a model's chat template: whether there is one, and whether it renders a message."""

from __future__ import annotations

from typing import Any

from daft_vllm.errors import ModelError
from daft_vllm.model_configs import config_of
from daft_vllm.udf.preflight.model import Model
from daft_vllm.udf.preflight.report import Check
from daft_vllm.wording import brief


def check_chat_template(model: Model, given: str | None, asked: bool | None) -> str | Check:
    """Return which chat template is used. transformers renders it in Jinja's sandbox.

    Args:
        model: the model.
        given: ``chat_template`` of ``prompt()``.
        asked: ``apply_chat_template`` of ``prompt()``.

    Raises:
        ModelError: there is none and it was asked for, or it can't be read.
    """
    name = "chat template"
    if given is not None:
        return "passed"
    if asked is False:
        return "not used: prompts are sent as they are"
    tokenizer = model.tokenizer
    if tokenizer is None:
        return Check(name, "skipped", "the tokenizer is not on this machine")
    if tokenizer.chat_template:
        return _renders(tokenizer)
    config = config_of(model.name)
    if config is not None and config.prompting.chat_template is not None:
        return "that of the model's config"
    missing = "the model has none: base models have none. Use the instruction-tuned model, or pass chat_template="
    if asked:
        raise ModelError(missing)
    return Check(name, "warning", f"{missing}; prompts are sent as they are")


def _renders(tokenizer: Any) -> str | Check:
    """Return that the model's own chat template is used. Raise ``ModelError`` if it can't be read."""
    from jinja2 import TemplateError, TemplateSyntaxError

    try:
        tokenizer.apply_chat_template(
            [{"role": "user", "content": "Hello."}], tokenize=False, add_generation_prompt=True
        )
    except TemplateSyntaxError as e:
        raise ModelError(
            f"the model's chat template is damaged ({brief(e)}): pass chat_template=, or download it again."
        ) from e
    except TemplateError as e:
        return Check("chat template", "warning", f"the model's own; it refuses a message of text alone: {brief(e)}")
    return "the model's own"
