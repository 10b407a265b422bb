"""A model and what is known about it, and whether the installed vLLM serves it: for ``check`` and before a load."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from daft_vllm.engine.setup.context import config_in
from daft_vllm.engine.setup.model_files.folder import FROM_FILES, missing_weights, weight_files
from daft_vllm.engine.setup.preflight import local_tokenizer
from daft_vllm.errors import MissingPackageError
from daft_vllm.model_configs import ModelConfig, config_of, derived_config, known_folder, known_models
from daft_vllm.model_configs.resolution import Setting


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
        if known is not None:
            return known
        trusted = self.args.get("trust_remote_code") is True
        return derived_config(str(self.folder or self.name), trust_remote_code=trusted)

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
    def reads_weights(self) -> bool:
        """Whether its weights are read from its files. False for random numbers, for example."""
        return self.args.get("load_format", "auto") in FROM_FILES


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
    config = config_in(model.folder)
    return None if config is None else str(config.get("model_type"))
