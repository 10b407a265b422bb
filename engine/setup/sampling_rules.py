"""vLLM's own checks of sampling options, without an import of vLLM.

An import of vLLM takes seconds and much memory, too much for a driver. So the methods of vLLM's ``SamplingParams`` that
check its values are taken from its source text, and run on a plain class. The worker checks with vLLM's class itself.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import logging
import math
from collections.abc import Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from daft_vllm.engine.setup.sources import module_source, package_folder
from daft_vllm.errors import OptionError

_GPU_LIMITS = "vllm.v1.worker.gpu.sample.logit_bias"
_OF_MODEL = ("_validate_logit_bias", "_validate_stop_token_ids", "_validate_allowed_token_ids")
_NOT_WITH_A_FORMAT = {
    "ignore_eos": "an answer ends where the format is complete. Leave ignore_eos out",
    "allowed_token_ids": "the format says which tokens are allowed. Leave allowed_token_ids out, or the format",
}


class _Refused(ValueError):
    """Stands for vLLM's error, which takes the same arguments."""

    def __init__(self, message: str, **about: Any) -> None:
        super().__init__(message)


def check_sampling(
    options: Mapping[str, Any],
    *,
    constrained: bool = False,
    choices: Sequence[str] | None = None,
    gpus: float = 0,
    vocabulary: int | None = None,
    tokenizer: Any = None,
    ends: Collection[int] = (),
) -> None:
    """Raise ``OptionError`` for values that vLLM refuses, that would end its core, or that contradict each other.

    Where vLLM isn't installed, its own checks are left to the worker.

    Args:
        options: sampling options by vLLM's names. Those that are left out have vLLM's defaults.
        constrained: whether the answers have to satisfy a constraint.
        choices: the only answers allowed, if the constraint is a list of them.
        gpus: GPUs of the engine. vLLM's runner for GPUs takes fewer token ids than the one for CPUs.
        vocabulary: number of tokens that the model knows. None: token ids are not checked.
        tokenizer: the model's. None: ``bad_words`` are not checked.
        ends: the tokens with which the model itself ends a text. vLLM counts them among ``stop_token_ids``.
    """
    if constrained:
        _check_with_format(options, choices)
    if gpus:
        _check_gpu_limits(options, ends)
    rules = _rules()
    if rules is None:
        return
    params = rules()
    vars(params).update(options)
    try:
        params.__post_init__()
        if vocabulary is not None:
            model = SimpleNamespace(get_vocab_size=lambda: vocabulary)
            for check in _OF_MODEL:
                getattr(params, check)(model)
        if tokenizer is not None and params.bad_words:
            last = getattr(tokenizer, "max_token_id", None) or len(tokenizer) - 1
            params.update_from_tokenizer(SimpleNamespace(encode=tokenizer.encode, max_token_id=last))
            _check_bad_words(params._bad_words_token_ids, options.get("allowed_token_ids"), gpus)
    except _Refused as e:
        raise OptionError(str(e)) from None
    except OptionError:
        raise
    except Exception as e:  # a newer vLLM needs more than it finds here; the worker checks with vLLM itself
        logging.getLogger("daft_vllm").debug("vLLM's checks of sampling options can't run here: %r", e)


def _check_with_format(options: Mapping[str, Any], choices: Sequence[str] | None) -> None:
    words = options.get("bad_words") or ()
    if choices and all(any(word in choice for word in words) for choice in choices):
        raise OptionError("bad_words has a word of every choice in return_format: nothing is left to answer.")
    for name, why in _NOT_WITH_A_FORMAT.items():
        if options.get(name):
            raise OptionError(f"{name} contradicts return_format: {why}.")


def _check_gpu_limits(options: Mapping[str, Any], ends: Collection[int]) -> None:
    for name, most in gpu_limits().items():
        tokens: Collection[int] = options.get(name) or ()
        if name == "stop_token_ids":
            # The runner has a list of the tokens that end an answer only to forbid them before min_tokens.
            tokens = {*tokens, *ends} if (options.get("min_tokens") or 0) > 0 else ()
            if len(tokens) > most:
                raise OptionError(
                    f"stop_token_ids and the model's own ends of a text are {len(tokens)} tokens, and with min_tokens "
                    f"vLLM takes at most {most} on a GPU: leave some of them out, or min_tokens."
                )
        elif len(tokens) > most:
            raise OptionError(f"{name} has {len(tokens)} tokens, and vLLM takes at most {most} on a GPU.")


def _check_bad_words(forbidden: Sequence[Sequence[int]], allowed: Sequence[int] | None, gpus: float) -> None:
    if allowed is not None and set(allowed) <= {tokens[0] for tokens in forbidden if len(tokens) == 1}:
        raise OptionError("bad_words forbids every token of allowed_token_ids: nothing is left to generate.")
    total, most = sum(map(len, forbidden)), _envs().VLLM_MAX_BAD_WORDS_TOTAL_TOKENS
    if gpus and total > most:
        raise OptionError(
            f"bad_words has {total} tokens in all, and vLLM takes at most {most} on a GPU: leave some words out, or "
            "raise the environment variable VLLM_MAX_BAD_WORDS_TOTAL_TOKENS."
        )


@functools.cache
def _rules() -> type[Any] | None:
    """Return a class with the defaults and methods of vLLM's ``SamplingParams``, None where vLLM isn't installed."""
    source = module_source("vllm.sampling_params")
    if source is None:
        return None
    body = ast.parse(source).body
    chosen = [part for part in body if isinstance(part, ast.FunctionDef) or _is_constant(part)]
    for part in body:
        if isinstance(part, ast.ClassDef) and part.name == "SamplingParams":
            part.bases, part.keywords = [], []
            part.body = [item for item in part.body if _is_check(item) or _is_plain_field(item)]
            chosen.append(part)
    for function in (node for part in chosen for node in ast.walk(part) if isinstance(node, ast.FunctionDef)):
        function.decorator_list = []
        function.returns = None
        for argument in ast.walk(function.args):
            if isinstance(argument, ast.arg):
                argument.annotation = None
    module = ast.fix_missing_locations(ast.Module(chosen, []))
    silent = logging.getLogger("daft_vllm.silent")
    silent.disabled = True
    silent.warning_once = silent.warning  # type: ignore[attr-defined]  # vLLM's loggers have it
    names: dict[str, Any] = {
        "math": math,
        "logger": silent,
        "VLLMValidationError": _Refused,
        "envs": _envs(),
    }
    exec(compile(module, "vllm.sampling_params", "exec"), names)
    rules: type[Any] | None = names.get("SamplingParams")
    if rules is not None:
        rules._all_stop_token_ids = set()
    return rules


def _is_constant(part: ast.stmt) -> bool:
    return isinstance(part, ast.Assign) and isinstance(part.value, ast.Constant)


def _is_check(part: ast.stmt) -> bool:
    return isinstance(part, ast.FunctionDef) and (part.name.startswith("_") or part.name == "update_from_tokenizer")


def _is_plain_field(part: ast.stmt) -> bool:
    return isinstance(part, ast.AnnAssign) and isinstance(part.value, ast.Constant)


@functools.cache
def _envs() -> Any:
    """Return vLLM's module of environment variables. It imports nothing else of vLLM."""
    folder = package_folder("vllm")
    spec = importlib.util.spec_from_file_location("daft_vllm_envs", folder / "envs.py") if folder else None
    if spec is None or spec.loader is None:
        return SimpleNamespace()
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def gpu_limits() -> dict[str, int]:
    """Return how many token ids vLLM's runner for GPUs takes in each option. With more, its core would die.

    They are read from the runner's text, ``vllm/v1/worker/gpu/sample/logit_bias.py``. Empty: this vLLM has none.
    That of ``stop_token_ids`` includes the model's own ends, and holds for rows with ``min_tokens``.
    """
    constants: dict[str, Any] = {
        target.id: part.value.value
        for part in ast.parse(module_source(_GPU_LIMITS) or "").body
        if isinstance(part, ast.Assign) and isinstance(part.value, ast.Constant)
        for target in part.targets
        if isinstance(target, ast.Name)
    }
    names = {
        "allowed_token_ids": "MAX_NUM_ALLOWED_TOKEN_IDS",
        "logit_bias": "MAX_NUM_LOGIT_BIAS_TOKENS",
        "stop_token_ids": "MAX_NUM_STOP_TOKEN_IDS",
    }
    return {option: int(constants[name]) for option, name in names.items() if name in constants}
