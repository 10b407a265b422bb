"""Checks before a model is loaded, in the process that will load it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from daft_vllm.engine.constraints.constraint import Constraint
from daft_vllm.engine.constraints.enforcement import compile_error, enforcement_of
from daft_vllm.engine.setup.config import EngineConfig, check_engine_args, require_vllm
from daft_vllm.engine.setup.context import check_context, config_in
from daft_vllm.engine.setup.devices.build import check_build
from daft_vllm.engine.setup.model_files.folder import (
    FROM_FILES,
    check_folder_complete,
    check_model_folder,
    has_hf_tokenizer,
    has_mistral_tokenizer,
)
from daft_vllm.engine.setup.model_files.mistral import converted_tokenizer
from daft_vllm.engine.setup.model_files.pickles import check_model_pickles
from daft_vllm.engine.setup.sampling_rules import check_sampling
from daft_vllm.errors import SchemaError


def check_before_load(config: EngineConfig, constraints: Sequence[Constraint], sampling: Mapping[str, Any]) -> None:
    """Raise errors that would otherwise appear only after minutes of loading.

    Args:
        config: the engine to load.
        constraints: what the answers have to satisfy.
        sampling: the sampling options of all rows, by vLLM's names.

    Raises:
        MissingPackageError: vLLM is not installed.
        OptionError: the installed vLLM is built for other devices, does not know an engine argument, doesn't take its
            value, or refuses a sampling option, or the context is longer than the model's.
        ModelError: the model's folder doesn't exist, contains no model, a file of it is missing or cut off, or its
            weights are pickles that the engine's arguments don't allow.
        SchemaError: a backend can't enforce its constraint with this model's tokenizer.
    """
    require_vllm()
    check_build(config.gpus)
    check_engine_args(config.engine_args)
    check_model_folder(config.model)
    folder = Path(config.model).expanduser()
    check_context(config_in(folder), config.engine_args)
    if folder.is_dir():
        args = config.engine_args
        weights = args.get("load_format", "auto") in FROM_FILES
        check_folder_complete(folder, weights=weights, tokenizer=not args.get("tokenizer"))
        if weights:
            check_model_pickles(folder, args)
    tokenizer_of = str(config.engine_args.get("tokenizer") or config.model)
    check_sampling_for(config, sampling, constraints=constraints, tokenizer_of=tokenizer_of)
    for constraint in constraints:
        check_constraint(constraint, tokenizer_of)


def check_sampling_for(
    config: EngineConfig, sampling: Mapping[str, Any], *, constraints: Sequence[Constraint], tokenizer_of: str | None
) -> None:
    """Raise ``OptionError`` for sampling options that an engine can't use. ``sampling_rules`` has the rules.

    Args:
        config: the engine.
        sampling: the sampling options of all rows, by vLLM's names.
        constraints: what the answers have to satisfy: one, or one for each kind of row.
        tokenizer_of: the model whose tokenizer is used. None: what needs it is not checked.
    """
    needs_tokenizer = tokenizer_of is not None and bool(sampling.get("bad_words"))
    check_sampling(
        # vLLM checks the ranges of each option by itself; whether two fit together was checked with the columns.
        {**sampling, "max_tokens": None},
        constrained=bool(constraints),
        choices=constraints[0].choices if len(constraints) == 1 else None,
        gpus=config.gpus,
        vocabulary=_vocabulary(Path(config.model).expanduser()),
        tokenizer=local_tokenizer(tokenizer_of) if needs_tokenizer and tokenizer_of is not None else None,
        ends=_ends(Path(config.model).expanduser()),
    )


def _vocabulary(folder: Path) -> int | None:
    """Return the number of tokens that a model in a folder knows, None where its config doesn't say so."""
    config = config_in(folder) or {}
    size = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")
    return size if isinstance(size, int) else None


def _ends(folder: Path) -> list[int]:
    """Return the tokens that end a text by the files of a model's folder. The worker knows all of them."""
    for name in ("generation_config.json", "config.json"):
        ends = (config_in(folder, name) or {}).get("eos_token_id")
        if ends is not None:
            return [end for end in (ends if isinstance(ends, list) else [ends]) if isinstance(end, int)]
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
        return load_tokenizer(model)
    except Exception:  # the load, and check, will report what is wrong with it
        return None


@functools.lru_cache(maxsize=2)
def load_tokenizer(model: str) -> Any:
    """Return the tokenizer of a model that is on this machine. Raises whatever transformers raises.

    Code that comes with a model is never run here: ``trust_remote_code=None``, transformers' default, asks in the
    terminal.
    """
    from transformers import AutoTokenizer

    folder = Path(model).expanduser()
    if not has_mistral_tokenizer(folder):
        return AutoTokenizer.from_pretrained(model, local_files_only=True, trust_remote_code=False)
    place = folder if has_hf_tokenizer(folder) else converted_tokenizer(folder)
    return AutoTokenizer.from_pretrained(place, local_files_only=True, trust_remote_code=False, mistral_format=False)
