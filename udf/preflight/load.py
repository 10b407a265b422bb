"""Checks right before a model is loaded. Without them the load would fail with the same problem minutes later."""

from __future__ import annotations

import logging
from dataclasses import replace

from daft_vllm.engine import EngineConfig
from daft_vllm.engine.setup.devices.driver import GpuState, check_free, gpu_states, visible_gpus
from daft_vllm.engine.setup.reproducible import check_capability
from daft_vllm.errors import DaftVLLMError, ModelError
from daft_vllm.model_configs import config_of
from daft_vllm.model_configs.cards import GIB, card_named
from daft_vllm.model_configs.memory import utilization_of, weights_of
from daft_vllm.model_configs.resolution import Setting, card_settings, with_batching
from daft_vllm.model_configs.splitting import heads_problem, split_advice, tensor_parallel_size
from daft_vllm.udf.preflight.architecture import check_card_type, check_split
from daft_vllm.udf.preflight.files import check_disk
from daft_vllm.udf.preflight.memory import check_machine_memory, check_memory
from daft_vllm.udf.preflight.model import Model, check_packages
from daft_vllm.udf.preflight.report import Check
from daft_vllm.udf.preflight.reproducible import check_reproducible

logger = logging.getLogger("daft_vllm")

_SMALLER_THAN_ITS_FILES = ("quantization", "cpu_offload_gb", "offload_backend")
"""With any of these engine arguments the weights take less of the GPU's memory than the size of their files."""


def check_fits(config: EngineConfig, engines: int = 1) -> None:
    """Raise now what would otherwise end a load after minutes, or a download after hours.

    Call it in the process that will load the model. Estimates raise nothing: if the weights seem to leave too little
    memory for the KV cache, a warning says so.

    Args:
        config: how each engine is started.
        engines: how many are started on this machine's CPU.

    Raises:
        MissingPackageError: the model needs a Python package that isn't installed.
        ModelError: vLLM can't split it over this number of GPUs, a GPU can't compute with its weights, its answers
            can't be reproducible, it doesn't fit into the memory, or its files onto the disk.
        DeviceError: something else uses a GPU's memory, or a card is too old for reproducible answers.
    """
    model = Model(config.model, {name: Setting(value, "given") for name, value in config.engine_args.items()})
    check_packages(model)
    _check_heads(model, config)
    if config.reproducible:
        check_reproducible(model, config.gpus)
    states = gpu_states(visible_gpus()[: max(1, int(config.gpus))]) if config.gpus else []
    _check_types(model, states)
    for state in states if config.reproducible else []:
        check_capability(state.name, state.capability)
    if not model.reads_weights:
        return
    if config_of(model.name) is not None:  # for other models the hub would have to be asked for the size
        check_disk(model)
    weights = _weights(model, config)
    if states:
        check_gpus(config, weights, states)
        _warn_if_tight(model, config, states[0])
    elif weights is not None and not config.gpus:
        check_machine_memory(weights, config.engine_args, engines)


def _check_heads(model: Model, config: EngineConfig) -> None:
    """Raise ``ModelError`` if the attention heads can't be divided by the number of GPUs, which vLLM always refuses."""
    size = tensor_parallel_size(config.gpus, config.engine_args)
    if size == 1:
        return
    try:
        problem = heads_problem(model.config, size)
        advice = split_advice(model.config, size, config.engine_args) if problem is not None else ""
    except Exception as e:  # a model that only vLLM can read
        logger.debug("not known whether %s can be split: %s", model.name, e)
        return
    if problem is not None:
        raise ModelError(f"vLLM can't split {model.name} over {size} GPUs: {problem}. {advice}")


def _check_types(model: Model, states: list[GpuState]) -> None:
    """Raise ``ModelError`` if a GPU can't compute with the model's weights."""
    try:
        model.config  # noqa: B018 - a property that reads files
    except Exception as e:  # a model that only vLLM can read
        logger.debug("not known what weights %s has: %s", model.name, e)
        return
    for state in states:
        check_card_type(model, state.name, state.capability)


def with_card_settings(config: EngineConfig) -> EngineConfig:
    """Return the config with the settings for this process's card. The job's own settings are kept.

    Only the process that loads the model sees the card: the driver may have no card, or a different one.
    """
    states = gpu_states(visible_gpus()[:1]) if config.gpus else []
    card = card_named(states[0].name, states[0].total) if states else None
    if card is None:
        return config
    known = config_of(config.model)
    settings = card_settings(known, card) | {
        name: Setting(value, "given") for name, value in config.engine_args.items()
    }
    try:
        settings = with_batching(settings, known, card, config.gpus)
    except Exception as e:  # an estimate, of an odd model
        logger.debug("not known which batches suit %s: %s", config.model, e)
    return replace(config, engine_args={name: setting.value for name, setting in settings.items()})


def check_gpus(config: EngineConfig, weights: int | None, states: list[GpuState]) -> None:
    """Raise if the weights alone need more memory than these GPUs give, or something else uses that memory.

    Args:
        config: how the engine is started.
        weights: bytes of the model's weights. None: unknown.
        states: the engine's GPUs.
    """
    utilization = utilization_of(config.engine_args, config.gpus)
    check_free(states, utilization)
    room = int(min(state.total for state in states) * utilization)
    split = (weights or 0) // len(states)
    if split > room and not any(name in config.engine_args for name in _SMALLER_THAN_ITS_FILES):
        raise ModelError(
            f"the weights take {split / GIB:.1f} GiB of each of {len(states)} GPUs, which give "
            f"{room / GIB:.1f}: use more GPUs (gpus=), a smaller model, or a quantized one. "
            f"'daft-vllm config {config.model} --gpu' shows what fits."
        )


def _weights(model: Model, config: EngineConfig) -> int | None:
    if model.file_bytes is not None:
        return model.file_bytes
    known = config_of(model.name)
    return weights_of(known, config.engine_args) if known is not None else None


def _warn_if_tight(model: Model, config: EngineConfig, state: GpuState) -> None:
    """Log a warning if, by estimate, the model doesn't fit or can't be split. No estimate ends a load."""
    card = card_named(state.name, state.total)
    if card is None:
        return
    try:
        check_split(model, config.gpus)
        found = check_memory(model, card, config.gpus)
        if isinstance(found, Check):
            logger.debug("the memory: %s", found.seen)
    except DaftVLLMError as e:
        logger.warning("by estimate this won't do, and vLLM will say so: %s", e)
    except Exception as e:  # a model of a kind that the estimate doesn't know
        logger.debug("the memory of %s can't be estimated: %s", model.name, e, exc_info=True)
