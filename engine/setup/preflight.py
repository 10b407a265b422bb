"""Checks before a model is loaded, in the process that will load it."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from daft_vllm.engine.constraints.constraint import Constraint
from daft_vllm.engine.constraints.enforcement import compile_error, enforcement_of
from daft_vllm.engine.setup.config import EngineConfig, check_engine_args, require_vllm
from daft_vllm.engine.setup.sampling_rules import check_sampling
from daft_vllm.errors import ModelError, SchemaError

_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")


def check_before_load(config: EngineConfig, constraints: Sequence[Constraint], sampling: Mapping[str, Any]) -> None:
    """Raise errors that would otherwise appear only after minutes of loading.

    Args:
        config: the engine to load.
        constraints: what the answers have to satisfy.
        sampling: the sampling options of all rows, by vLLM's names.

    Raises:
        MissingPackageError: vLLM is not installed.
        OptionError: the installed vLLM does not know an engine argument, or refuses a sampling option.
        ModelError: the model's folder doesn't exist, contains no model, or lacks a file of weights.
        SchemaError: a backend can't enforce its constraint with this model's tokenizer.
    """
    require_vllm()
    check_engine_args(config.engine_args)
    check_model_folder(config.model)
    folder = Path(config.model).expanduser()
    if folder.is_dir() and config.engine_args.get("load_format") != "dummy" and (missing := missing_weights(folder)):
        raise ModelError(f"the folder {str(folder)!r} is not complete: {missing[0]} is missing.")
    tokenizer_of = str(config.engine_args.get("tokenizer") or config.model)
    check_sampling_for(config, sampling, constrained=bool(constraints), tokenizer_of=tokenizer_of)
    for constraint in constraints:
        check_constraint(constraint, tokenizer_of)


def check_sampling_for(
    config: EngineConfig, sampling: Mapping[str, Any], *, constrained: bool, tokenizer_of: str | None
) -> None:
    """Raise ``OptionError`` for sampling options that an engine can't use. ``sampling_rules`` has the rules.

    Args:
        config: the engine.
        sampling: the sampling options of all rows, by vLLM's names.
        constrained: whether the answers have to satisfy a constraint.
        tokenizer_of: the model whose tokenizer is used. None: what needs it is not checked.
    """
    needs_tokenizer = tokenizer_of is not None and bool(sampling.get("bad_words"))
    check_sampling(
        # vLLM checks the ranges of each option by itself; whether two fit together was checked with the columns.
        {**sampling, "max_tokens": None},
        constrained=constrained,
        gpus=config.gpus,
        vocabulary=_vocabulary(Path(config.model).expanduser()),
        tokenizer=local_tokenizer(tokenizer_of) if needs_tokenizer and tokenizer_of is not None else None,
    )


def _vocabulary(folder: Path) -> int | None:
    """Return the number of tokens that a model in a folder knows, None where its config doesn't say so."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        size = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
    except (OSError, ValueError, AttributeError):
        return None
    return size if isinstance(size, int) else None


def check_model_folder(model: str) -> None:
    """Raise ``ModelError`` if ``model`` is given as a folder, and contains no model. Names on a hub are not checked."""
    path = Path(model).expanduser()
    looks_like_path = path.is_absolute() or model.startswith((".", "~")) or path.is_dir() or model.count("/") > 1
    if not looks_like_path:
        return
    if not path.is_dir():
        raise ModelError(
            f"there is no model folder {model!r}. Give the folder with the model's config.json, "
            "or a name on the Hugging Face hub such as 'HuggingFaceTB/SmolLM2-135M-Instruct'."
        )
    if not (path / "config.json").is_file():
        raise ModelError(f"the folder {model!r} has no config.json: it is not a model in Hugging Face format.")


def missing_weights(folder: Path) -> list[str]:
    """Return the files of weights that are missing in a folder."""
    for index in folder.glob("*.index.json"):
        named = set(json.loads(index.read_text(encoding="utf-8")).get("weight_map", {}).values())
        return sorted(name for name in named if not (folder / name).exists())
    return [] if weight_files(folder) else ["every file of weights"]


def weight_files(folder: Path) -> list[Path]:
    """Return a folder's files of weights, all of one kind, even if it has several kinds."""
    for kind in _WEIGHTS:
        found = sorted(folder.glob(kind))
        if found:  # Mistral's repositories have all weights a second time, in their own format
            return [path for path in found if not path.name.startswith("consolidated")] or found
    return []


def check_constraint(constraint: Constraint, model: str | None = None) -> None:
    """Raise ``SchemaError`` if a constraint can't be enforced, or not with the model's tokenizer.

    Loads the tokenizer if it is on this machine. Loads no weights.

    Args:
        constraint: the constraint.
        model: folder or name of a model. The constraint has to work with its tokenizer. None: no tokenizer is checked.

    Raises:
        SchemaError: see ``enforcement.enforcement_of``; or the grammar can't be compiled for the tokenizer.
    """
    one = enforcement_of(constraint)
    tokenizer = local_tokenizer(model) if model is not None else None
    if tokenizer is not None:
        error = compile_error(one, tokenizer)
        if error is not None:
            raise SchemaError(f"{one.backend} can't compile return_format for this model's tokenizer: {error}")


def local_tokenizer(model: str) -> Any:
    """Return the tokenizer of a model that is on this machine, else None. Nothing is downloaded."""
    try:
        return _tokenizer(model)
    except Exception:  # vLLM has its own tokenizers (Mistral's), and will report what is wrong with others
        return None


@functools.lru_cache(maxsize=2)
def _tokenizer(model: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model, local_files_only=True)
