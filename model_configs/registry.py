"""The known models and how a name is resolved."""

from __future__ import annotations

import copy
import functools
import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from daft_vllm.errors import ModelError, OptionError, suggest
from daft_vllm.model_configs.architecture import Architecture, architecture_of, quiet_transformers
from daft_vllm.model_configs.packaged import Package, converted_folder, folder_of
from daft_vllm.model_configs.sampling import Mode, Sampling

_Thinking = Literal["never", "always", "switch"]
_MODES: dict[_Thinking, tuple[Mode, ...]] = {
    "never": ("not_thinking",),
    "always": ("thinking",),
    "switch": ("thinking", "not_thinking"),
}


@dataclass(frozen=True)
class Prompting:
    """How a model expects its prompts. The arguments of ``prompt()`` take precedence.

    Args:
        chat_template: Jinja text, for a model that has no chat template or a wrong one. None: the model's own is used.
        chat_template_kwargs: arguments of the chat template, ``{"enable_thinking": false}`` for example.
        system_role: where the chat template puts a system message: in a turn of its own, elsewhere, or nowhere.
        thinking: ``"never"``, ``"always"``, or ``"switch"`` if an argument of the chat template turns it on or off.
        thinks_by_default: for ``"switch"``, and only then: whether the model thinks if no argument says anything.
        no_thinking_kwargs: arguments of the chat template that turn thinking off. ``enable_thinking`` and ``thinking``
            are passed in any case.
        no_thinking_text: text that then follows the chat template's, if the template leaves the thinking open.
        reasoning_parser: vLLM's name for the parser of the model's thinking. None: it doesn't think.
        tool_parser: vLLM's name for the parser of the model's tool calls. None: it isn't trained on tools.

    Raises:
        ValueError: the fields about thinking contradict each other.
    """

    chat_template: str | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    system_role: str = "a turn of its own"
    thinking: _Thinking = "never"
    thinks_by_default: bool | None = None
    no_thinking_kwargs: Mapping[str, Any] = field(default_factory=dict)
    no_thinking_text: str = ""
    reasoning_parser: str | None = None
    tool_parser: str | None = None

    def __post_init__(self) -> None:
        if self.thinking not in get_args(_Thinking):
            raise ValueError(f"thinking is one of {', '.join(get_args(_Thinking))}, got {self.thinking!r}.")
        switched = self.thinking == "switch"
        if switched != isinstance(self.thinks_by_default, bool):
            raise ValueError('thinks_by_default is true or false if thinking is "switch", and not given otherwise.')
        if not switched and (self.no_thinking_kwargs or self.no_thinking_text):
            raise ValueError('no_thinking_kwargs and no_thinking_text need thinking = "switch".')

    @property
    def modes(self) -> tuple[Mode, ...]:
        """Whether answers can begin with thinking, or without, or both."""
        return _MODES[self.thinking]

    def mode(self, thinking: bool | None) -> Mode:
        """Return the mode of an answer. ``thinking``: what the prompt asks for; None: nothing."""
        if len(self.modes) == 1:
            return self.modes[0]
        return "thinking" if (self.thinks_by_default if thinking is None else thinking) else "not_thinking"


@dataclass(frozen=True)
class Overlay:
    """Additional engine arguments of a model on one card.

    Args:
        engine_args: by vLLM's names; none of them is in the model's own ``engine_args``.
        why: the reason for each of them and who says so, by the argument's name.
    """

    engine_args: Mapping[str, Any]
    why: Mapping[str, str]


@dataclass(frozen=True)
class ModelConfig:
    """One model as its TOML file describes it.

    Args:
        name: the short name that ``prompt(model=...)`` takes.
        hub_name: the model's name on the Hugging Face hub.
        licence: SPDX identifier of the weights' licence.
        parameters: number of weights, tied ones counted once.
        max_model_len: longest context that the model was trained for, in tokens.
        active_parameters: weights that a token goes through in a mixture of experts. None: all.
        gated: whether the hub asks for the token of a user who accepted the licence.
        modalities: kinds of input that it takes.
        dtypes: types of its weights with which it gives right answers.
        quantization: vLLM's name for the quantization of the published weights. None: they are not quantized.
        task: ``"generate"`` or ``"embed"``.
        packages: Python packages that it needs beside vLLM's.
        prompting: how it expects its prompts.
        sampling: the sampling options that its makers recommend, for each of its modes. ``prompt()`` applies them with
            ``recommended_sampling=True``. None: it generates nothing, or no file describes it.
        remote_code: what the model needs Python code from its own repository for. vLLM then needs
            ``trust_remote_code``, which only the user turns on. None: it needs none.
        engine_args: arguments of vLLM's engine for it, by vLLM's names.
        why: the reason for each of them, by the argument's name.
        cards: additional engine arguments on single cards, by the card's name.
        config: the parts of its ``config.json`` that planning needs, as Hugging Face's config classes take them.
        sources: where these numbers come from, and when they were read.
        package: the Python package that carries the weights. None: they come from the hub.
    """

    name: str
    hub_name: str
    licence: str
    parameters: int
    max_model_len: int
    active_parameters: int | None = None
    gated: bool = False
    modalities: Sequence[str] = ("text",)
    dtypes: Sequence[str] = ("bfloat16", "float16", "float32")
    quantization: str | None = None
    task: Literal["generate", "embed"] = "generate"
    packages: Sequence[str] = ()
    prompting: Prompting = field(default_factory=Prompting)
    sampling: Sampling | None = None
    remote_code: str | None = None
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    why: Mapping[str, str] = field(default_factory=dict)
    cards: Mapping[str, Overlay] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, Any] = field(default_factory=dict)
    package: Package | None = None

    @functools.cached_property
    def architecture(self) -> Architecture:
        """The numbers that planning needs. Imports transformers."""
        from transformers import AutoConfig

        with quiet_transformers():
            return architecture_of(AutoConfig.for_model(**copy.deepcopy(dict(self.config))))

    def check_takes(self, kinds: Iterable[str]) -> None:
        """Raise ``ModelError`` if the model doesn't take one of these kinds of media."""
        for kind in sorted(kinds):
            if kind not in self.modalities:
                raise ModelError(f"the prompt has {kind}s, and {self.hub_name} takes {', '.join(self.modalities)}.")

    @classmethod
    def load(cls, path: Path) -> ModelConfig:
        """Read a TOML file, in which ``"null"`` stands for None.

        Raises:
            TypeError: a key is unknown or missing.
            ValueError: what it says about thinking or about sampling can't be.
        """
        data: dict[str, Any] = _with_nulls(tomllib.loads(path.read_text(encoding="utf-8")))
        package = data.pop("package", None)
        prompting = Prompting(**data.pop("prompting", {}))
        overlays = {name: Overlay(**values) for name, values in data.pop("cards", {}).items()}
        package = Package(**package) if package else None
        modes = data.pop("sampling", None)
        sampling = Sampling(modes.pop("source", ()), modes) if modes is not None else None
        stated, needed = set(modes or ()), set(prompting.modes) if data.get("task") != "embed" else set()
        if stated != needed:
            raise ValueError(
                f"{path.name}: [sampling] has {', '.join(sorted(stated)) or 'no mode'}, and the model has "
                f'{", ".join(sorted(needed)) or "none"}: state the numbers of each, or "null".'
            )
        return cls(**data, prompting=prompting, sampling=sampling, cards=overlays, package=package)


def _with_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_nulls(item) for name, item in value.items()}
    return None if value == "null" else value


@functools.cache
def known_models() -> dict[str, ModelConfig]:
    """Return the known models by short name."""
    paths = (Path(__file__).parent / "models").glob("*/*.toml")
    configs = [ModelConfig.load(path) for path in sorted(paths, key=lambda path: path.name)]
    return {config.name: config for config in configs}


def config_of(model: str) -> ModelConfig | None:
    """Return the config of a model by its short name or its name on the hub, in any case; None if there is none.

    A folder of that name, written in another case than the short name, is the folder.
    """
    known = known_models()
    if model in known:
        return known[model]
    if "/" not in model and os.path.isdir(model):  # Path.is_dir raises for a name that is too long
        return None
    return known.get(model.lower()) or _by_hub_name().get(model.lower())


def _by_hub_name() -> dict[str, ModelConfig]:
    return {config.hub_name.lower(): config for config in known_models().values()}


def check_known_model(model: str) -> None:
    """Raise ``OptionError`` if the name is empty, or nearly but not exactly that of a known model."""
    if not isinstance(model, str) or not model.strip():
        raise OptionError(f"model is a folder, a name on the hub or a short name, got {model!r}.")
    if "/" in model or config_of(model) is not None or Path(model).expanduser().exists():
        return
    hint = suggest(model.lower(), known_models())
    if hint:
        raise OptionError(f"there is no model {model!r}.{hint} Names on the hub look like 'owner/name'.")


def resolve_model(model: str) -> str:
    """Return what vLLM should load for ``model``.

    For a packaged model that is a folder (converted on first use), for another known model its name on the hub, else
    ``model`` itself.

    Raises:
        MissingPackageError: the package that carries the model is not installed.
    """
    return _resolved(model, convert=True)


def known_folder(model: str) -> str:
    """Return the same as ``resolve_model`` without converting anything: the folder may not exist yet."""
    return _resolved(model, convert=False)


def _resolved(model: str, *, convert: bool) -> str:
    path = Path(model).expanduser()
    config = None if path.is_dir() and model not in known_models() else config_of(model)
    if config is None:
        return str(path) if model.startswith("~") else model
    if config.package is None or "/" in model:
        return config.hub_name
    return str((converted_folder if convert else folder_of)(config.name, config.package))
