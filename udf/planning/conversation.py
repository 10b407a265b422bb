"""How the model is asked: whether it thinks, the arguments of its chat template, and what its makers recommend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from daft_vllm.engine import EngineConfig
from daft_vllm.engine.setup.config import reasoning_parser
from daft_vllm.errors import OptionError
from daft_vllm.model_configs import ModelConfig, Prompting
from daft_vllm.model_configs.sampling import WORDS, Sampling
from daft_vllm.udf.options import PromptOptions

BLIND_PARSERS = frozenset({"hunyuan_a13b", "openai_gptoss"})
"""vLLM's reasoning parsers that find the end of the thinking in a finished answer, but not while it is written: to the
first it never ends, to the second it has always ended (``is_reasoning_end`` in ``vllm/reasoning``)."""
_SWITCHES = ("enable_thinking", "thinking")
"""Arguments of chat templates that turn thinking on or off. A prompt that asks for either gets both."""


def thinking_of(
    options: PromptOptions, engine: EngineConfig, *, is_parsed: bool, is_enforced: bool = False
) -> bool | None:
    """Return whether the prompt asks the model to think (True), not to think (False), or neither (None).

    Args:
        options: the options of ``prompt()``.
        engine: how the engine is started.
        is_parsed: whether the answer is more than a text.
        is_enforced: whether a format is enforced.

    Raises:
        OptionError: the model should think, but the engine doesn't know where its thinking ends.
    """
    parser = reasoning_parser(engine)
    if options.thinking and is_enforced and parser in BLIND_PARSERS:
        raise OptionError(
            f"thinking=True with an enforced format: vLLM's parser {parser!r} doesn't find where the thinking ends, so "
            "the format can't begin there. Leave thinking out, or leave the format out."
        )
    if options.thinking and not parser:
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

    If ``thinking`` is not None, the model's own arguments about thinking are left out, and those that turn it off are
    added where it is False.

    Raises:
        OptionError: the user's arguments let the model think where it shall not.
    """
    given = options.chat_template_kwargs or {}
    for name, value in prompting.no_thinking_kwargs.items() if thinking is False else ():
        if given.get(name, value) != value:
            raise OptionError(
                f"chat_template_kwargs lets the model think ({name}={given[name]!r}), and this job has no thinking: "
                f"pass thinking=True, or leave {name} out."
            )
    kwargs = dict(prompting.chat_template_kwargs)
    if thinking is not None:
        for name in (*_SWITCHES, *prompting.no_thinking_kwargs):
            kwargs.pop(name, None)
    if thinking is False:
        kwargs |= prompting.no_thinking_kwargs
    return {**kwargs, **given} or None


def recommended_numbers(
    options: PromptOptions, known: ModelConfig | None, thinking: bool | None, kwargs: Mapping[str, Any] | None
) -> Mapping[str, float]:
    """Return the sampling options that the model's makers recommend for answers such as these.

    Args:
        options: the options of ``prompt()``.
        known: the model's config, if there is one.
        thinking: what the prompt asks for, see ``thinking_of``.
        kwargs: the arguments of the chat template.

    Raises:
        OptionError: the makers recommend nothing, or nobody says whether the model thinks.
    """
    known, sampling = check_recommends(options.model, known)
    prompting = known.prompting
    if thinking is None:
        if len(prompting.modes) > 1 and (options.chat_template or options.apply_chat_template is False):
            raise OptionError(
                "recommended_sampling=True: the numbers differ with thinking and without, and without the model's own "
                "chat template only you know which it is. Pass thinking=True or thinking=False."
            )
        thinking = _asked_by_arguments(prompting, kwargs or {})
    mode = prompting.mode(thinking)
    numbers = sampling.modes[mode]
    if numbers is None:
        raise OptionError(
            f"recommended_sampling=True: the makers of {known.hub_name} recommend no sampling options"
            f"{WORDS[mode] if len(prompting.modes) > 1 else ''}. Pass temperature, top_p and so on yourself."
        )
    return numbers


def check_recommends(model: str, known: ModelConfig | None) -> tuple[ModelConfig, Sampling]:
    """Return the model's config and what its makers recommend. Raise ``OptionError`` if daft-vllm doesn't know that."""
    if known is None or known.sampling is None:
        raise OptionError(
            f"recommended_sampling=True: daft-vllm doesn't know what the makers of {model!r} recommend. Pass "
            "temperature, top_p and so on yourself."
        )
    return known, known.sampling


def _asked_by_arguments(prompting: Prompting, kwargs: Mapping[str, Any]) -> bool | None:
    """Return whether the arguments of the chat template turn thinking on (True) or off (False). None: neither."""
    off = prompting.no_thinking_kwargs
    if off and all(name in kwargs and kwargs[name] == value for name, value in off.items()):
        return False
    return next((bool(kwargs[name]) for name in _SWITCHES if name in kwargs), None)
