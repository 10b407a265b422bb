"""Weights that are pickles: files in which Python code can hide. They are read only if the user says so."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from daft_vllm.engine.setup.model_files.folder import weight_files
from daft_vllm.errors import ModelError

PICKLES = (".bin", ".pt")
"""Endings of pickles among the files of weights that vLLM reads."""
TRUSTED = ("hf", "pt", "npcache")
"""vLLM's ``load_format`` that read pickles: whoever passes one of them says that these may be read."""
_TRUST = 'engine_args={"load_format": "hf"}'


def reads_pickles(engine_args: Mapping[str, Any]) -> bool:
    """Whether the user's engine arguments say that weights may be pickles."""
    return str(engine_args.get("load_format") or "").lower() in TRUSTED


def check_model_pickles(folder: Path, engine_args: Mapping[str, Any]) -> None:
    """Raise ``ModelError`` if a model's weights are pickles only, and the user doesn't say that they may be read."""
    found = next((path for path in weight_files(folder) if path.suffix in PICKLES), None)
    if found is not None and not reads_pickles(engine_args):
        raise ModelError(
            f"the weights in {str(folder)!r} are pickles ({found.name}), in which Python code can hide: take the "
            f"model's safetensors. If you trust these files, pass {_TRUST}."
        )


def check_adapter_pickles(name: str, folder: Path, engine_args: Mapping[str, Any]) -> None:
    """Raise ``ModelError`` if an adapter's weights are a pickle, and the user doesn't say that it may be read."""
    if (folder / "adapter_model.safetensors").is_file() or reads_pickles(engine_args):
        return
    for ending in PICKLES:
        if (folder / f"adapter_model{ending}").is_file():
            raise ModelError(
                f"the weights of the adapter {name!r} in {str(folder)!r} are a pickle (adapter_model{ending}), in "
                f"which Python code can hide: save them as safetensors. If you trust the file, pass {_TRUST}."
            )


def safetensors_args(model: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with which vLLM reads safetensors only. Empty: it does so, or the user chose otherwise.

    By default (``"auto"``) vLLM 0.32 takes pickles of models without safetensors. It reads the files of Mistral's own
    format, which are safetensors, in place of all others.

    Args:
        model: a folder, or a name on the hub, which is asked for the names of the model's files.
        args: arguments of vLLM's engine.
    """
    if str(args.get("load_format") or "auto").lower() != "auto":
        return {}
    folder, own = Path(model).expanduser(), "consolidated*.safetensors"
    if folder.is_dir():
        mistral = any(folder.glob(own))
    else:
        from vllm.transformers_utils.repo_utils import list_filtered_repo_files

        revision = args.get("revision")
        mistral = bool(list_filtered_repo_files(model, allow_patterns=[own], revision=revision))
    return {"load_format": "mistral" if mistral else "safetensors"}
