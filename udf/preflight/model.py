"""Checks of a model for ``check``: its files, its architecture, the packages it needs, and its size."""

from __future__ import annotations

import difflib
import functools
import importlib.util
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from daft_vllm.engine.setup.preflight import local_tokenizer, missing_weights, weight_files
from daft_vllm.engine.setup.sources import module_source
from daft_vllm.errors import DaftVLLMError, MissingPackageError, ModelError
from daft_vllm.model_configs import ModelConfig, config_of, derived_config, known_folder, known_models
from daft_vllm.model_configs.advice import advice
from daft_vllm.model_configs.cards import GIB, Card
from daft_vllm.model_configs.memory import plan_memory, weights_of
from daft_vllm.model_configs.resolution import Setting

HUB_SECONDS = 5.0
"""How long the hub may take to answer."""


@dataclass
class Model:
    """A model, and what is known about it. Its properties are read when they are first used.

    Args:
        name: its name or folder, as the user gave it.
        engine_args: settings by name, including the user's.
    """

    name: str
    engine_args: Mapping[str, Setting] = field(default_factory=dict)

    @functools.cached_property
    def folder(self) -> Path | None:
        """Where its files are: a folder, or the hub's cache. None: not on this machine."""
        place = Path(known_folder(self.name)).expanduser()
        if place.is_dir():
            return place
        from huggingface_hub import try_to_load_from_cache

        config = config_of(self.name)
        name = config.hub_name if config is not None else self.name
        try:
            found = try_to_load_from_cache(name, "config.json")
        except ValueError:  # not the name of a repository
            return None
        return Path(found).parent if isinstance(found, str) else None

    @functools.cached_property
    def config(self) -> ModelConfig:
        """Its config: the one in this package, else one made from its ``config.json``. Raises ``ModelError``."""
        known = config_of(self.name)
        return known if known is not None else derived_config(str(self.folder or self.name))

    @property
    def tokenizer_of(self) -> str:
        """Folder or name of the model that its tokenizer comes from."""
        given = self.engine_args.get("tokenizer")
        return str(given.value if given is not None else self.folder or self.name)

    @functools.cached_property
    def tokenizer(self) -> Any:
        """Its tokenizer; None if it isn't on this machine."""
        return local_tokenizer(self.tokenizer_of)

    @functools.cached_property
    def file_bytes(self) -> int | None:
        """Bytes of its weight files. None: they are not all on this machine."""
        if self.folder is None or missing_weights(self.folder):
            return None
        return sum(path.stat().st_size for path in weight_files(self.folder))

    @property
    def args(self) -> dict[str, Any]:
        """The values of its settings by name."""
        return {name: setting.value for name, setting in self.engine_args.items()}

    @property
    def has_dummy_weights(self) -> bool:
        """Whether its weights are random numbers, so that no weight file is read."""
        return bool(self.args.get("load_format") == "dummy")


def check_files(model: Model) -> str:
    """Return where the model's files are: complete in a folder, in a package, or on the hub.

    Raises:
        ModelError: a file is missing, the hub doesn't have the model or can't be asked, or its licence has to be
            accepted.
    """
    known = config_of(model.name)
    folder = model.folder
    if folder is not None:
        missing = [] if model.has_dummy_weights else missing_weights(folder)
        if not missing:
            return f"{folder}, complete"
        if Path(model.name).expanduser().is_dir():
            raise ModelError(f"the folder {str(folder)!r} is not complete: {missing[0]} is missing.")
    if known is not None and known.package is not None:
        known.package.folder()
        return f"carried by the package {known.package.distribution}, converted on first use"
    if model.name.startswith((".", "/", "~")) or model.name.count("/") > 1:
        raise ModelError(f"there is no folder {model.name!r}.")
    return _on_hub(known.hub_name if known is not None else model.name, known)


def _on_hub(name: str, known: ModelConfig | None) -> str:
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    gated = f"{name} is gated: accept its licence on https://huggingface.co/{name}, and set HF_TOKEN."
    if known is not None and known.gated and get_token() is None:
        raise ModelError(gated)
    names = {known.lower(): known for config in known_models().values() for known in (config.hub_name, config.name)}
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.8)
    hint = f" Did you mean {names[near[0]]!r}?" if near and near[0] != name.lower() else ""
    if os.environ.get("HF_HUB_OFFLINE") == "1":
        raise ModelError(f"{name} is not in the hub's cache, and HF_HUB_OFFLINE is set.{hint}")
    try:
        info = HfApi().model_info(name, timeout=HUB_SECONDS)
    except GatedRepoError as e:
        raise ModelError(
            f"{name} is gated, and this token has no access: accept its licence on https://huggingface.co/{name}."
        ) from e
    except RepositoryNotFoundError as e:
        raise ModelError(f"the hub has no model {name!r}.{hint}") from e
    except Exception as e:
        why = str(e).splitlines()[0] if str(e) else type(e).__name__
        raise ModelError(f"{name!r} is not on this machine, and the hub can't be asked: {why}.{hint}") from e
    if info.gated and get_token() is None:
        raise ModelError(gated)
    return f"on the hub, {info.downloads or 0} downloads a month; not on this machine yet"


def check_packages(model: Model) -> None:
    """Raise ``MissingPackageError`` if the model needs a Python package that isn't installed."""
    kind = _model_type(model)
    needed = {
        name for known in known_models().values() if known.config.get("model_type") == kind for name in known.packages
    }
    missing = sorted(name for name in needed if importlib.util.find_spec(name) is None)
    if missing:
        names = " ".join(missing)
        raise MissingPackageError(f"{model.name} needs {names} beside vLLM: pip install {names}, or daft-vllm[media].")


def _model_type(model: Model) -> str | None:
    known = config_of(model.name)
    if known is not None:
        return str(known.config["model_type"])
    if model.folder is None:
        return None
    try:
        return str(json.loads((model.folder / "config.json").read_text(encoding="utf-8")).get("model_type"))
    except (OSError, ValueError):
        return None


def check_architecture(model: Model) -> str:
    """Return the model's architecture, if the installed vLLM serves it and the packages that it needs are installed.

    Raises:
        ModelError: vLLM doesn't serve it.
        MissingPackageError: a package is missing.
    """
    check_packages(model)
    names = [str(name) for name in model.config.config.get("architectures") or ["?"]]
    known = vllm_architectures()
    if known is None:
        return f"{names[0]}; not checked: no list of vLLM's architectures was found here"
    if not set(names) & known:
        near = difflib.get_close_matches(names[0], known, n=1)
        hint = f" The most similar one that it serves is {near[0]}." if near else ""
        raise ModelError(f"the installed vLLM has no architecture {names[0]}.{hint} transformers may still run it.")
    return names[0]


@functools.cache
def vllm_architectures() -> frozenset[str] | None:
    """Return the architectures of the installed vLLM, read from its source text; None if they can't be found there."""
    source = module_source("vllm.model_executor.models.registry")
    return frozenset(re.findall(r'^    "(\w+)": \(', source or "", re.MULTILINE)) or None


def check_memory(model: Model, card: Card | None, gpus: float) -> str:
    """Return how the model fits into a card's memory or, on a CPU, into this machine's.

    Raises:
        ModelError: it doesn't fit. The message says what would.
    """
    config = model.config
    args = model.args
    weights = weights_of(config, args)
    if card is None:
        if gpus:
            return f"{weights / GIB:.1f} GiB of weights; no card is known: name one with gpu="
        free = check_machine_memory(weights)
        return f"{weights / GIB:.1f} GiB of weights, {free / GIB:.1f} GiB of memory free"
    plan = plan_memory(config.architecture, weights, card, gpus=gpus, engine_args=args)
    if plan.fits:
        return (
            f"{plan.gpus} x {card.name}: {plan.weights / GIB:.1f} GiB of weights, {plan.cache / GIB:.1f} GiB for the "
            f"KV cache: a context of {plan.max_model_len}, {plan.concurrency:.1f} of that length at once"
        )
    raise ModelError(f"it doesn't fit {plan.gpus} x {card.name}: {' '.join(advice(config, plan, weights, args))}")


def check_machine_memory(weights: int) -> int:
    """Return the free bytes of this machine's memory. Raise ``ModelError`` if the weights take more."""
    free = psutil.virtual_memory().available
    if weights > free:
        raise ModelError(f"the weights take {weights / GIB:.1f} GiB, and {free / GIB:.1f} GiB of memory are free.")
    return free


def check_disk(model: Model) -> str:
    """Return how much room the disk has for the model's files.

    Raises:
        ModelError: the files take more room than there is.
    """
    if model.has_dummy_weights or model.file_bytes is not None:
        return "nothing to download"
    place = Path(os.environ.get("HF_HUB_CACHE") or os.environ.get("HF_HOME") or "~/.cache").expanduser()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    try:
        needs = weights_of(model.config)
    except DaftVLLMError:
        return f"{free / GIB:.0f} GiB free"
    if needs > free:
        raise ModelError(
            f"the model's files take {needs / GIB:.0f} GiB, and {place} has {free / GIB:.0f}: set HF_HOME elsewhere."
        )
    return f"{free / GIB:.0f} GiB free for {needs / GIB:.0f} GiB of files"
