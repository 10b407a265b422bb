"""The config of the engine that answers the rows."""

from __future__ import annotations

import logging
from pathlib import Path

from daft_vllm.engine import EngineConfig
from daft_vllm.engine.setup.context import check_context, config_in
from daft_vllm.engine.setup.devices.driver import visible_gpus
from daft_vllm.engine.setup.model_files.folder import check_model_folder
from daft_vllm.errors import ModelError, OptionError, suggest
from daft_vllm.model_configs import ModelConfig, Prompting, check_known_model, config_of
from daft_vllm.model_configs.resolution import check_remote_code, resolve
from daft_vllm.model_configs.splitting import heads_problem, split_advice, tensor_parallel_size
from daft_vllm.udf.options import PromptOptions
from daft_vllm.udf.preflight.architecture import check_writes
from daft_vllm.udf.preflight.cluster import nodes_of_cluster
from daft_vllm.udf.preflight.connection import on_ray
from daft_vllm.udf.preflight.reproducible import OTHERWISE, reproducible_problem

logger = logging.getLogger("daft_vllm")

_logged: set[str] = set()


def known_config(model: str) -> ModelConfig | None:
    """Return daft-vllm's own config of a model. None: it has none for this name.

    Raises:
        OptionError: the name is empty, or nearly the name of a known model.
        ModelError: the name is a path, and there is no model in that folder; or the model makes embeddings.
    """
    check_known_model(model)
    check_model_folder(model)
    config = config_of(model)
    if config is not None:
        check_writes(config)
    return config


def engine_config(options: PromptOptions, known: ModelConfig | None, prompting: Prompting) -> EngineConfig:
    """Return how the engine is started.

    Args:
        options: the options of ``prompt()``.
        known: the model's config, if there is one.
        prompting: the model's own settings for prompts.

    Raises:
        OptionError: an engine argument or an adapter is unknown or contradicts another option, the context is longer
            than the model's, or the model needs code that the user doesn't trust.
        ModelError: vLLM can't split the model over this number of GPUs, or its answers can't be reproducible.
    """
    adapters, adapter = options.adapters or {}, options.adapter
    if adapter is not None and not adapters:
        raise OptionError('adapter needs adapters={"name": "/folder/of/a/lora"}, which is empty.')
    if isinstance(adapter, str) and adapter not in adapters:
        raise OptionError(f"there is no adapter {adapter!r}.{suggest(adapter, adapters)}")
    settings = resolve(known, goal=options.goal, user=options.engine_args)
    check_remote_code(known, options.engine_args or {})
    engine_args = {name: setting.value for name, setting in settings.items()}
    check_context(known.config if known is not None else config_in(options.model), engine_args)
    config = EngineConfig(
        model=options.model,
        engine_args=engine_args,
        chat_template=options.chat_template or prompting.chat_template,
        no_thinking_text="" if options.chat_template else prompting.no_thinking_text,
        truncate_prompt_tokens=options.truncate_prompt_tokens,
        truncation_side=options.truncation_side,
        adapters={name: _absolute(place) for name, place in adapters.items()},
        gpus=_default_gpus() if options.gpus is None else options.gpus,
        reproducible=options.reproducible,
        draft=options.draft == "on",
        stall_timeout=options.stall_timeout,
        max_restarts=options.max_restarts,
    )
    if config.reproducible and known is not None:
        problem = reproducible_problem(known, config.engine_args, config.gpus, complete=False)
        if problem is not None:
            raise ModelError(f"reproducible=True can't be had with {known.name}: {problem}. {OTHERWISE}")
    size = tensor_parallel_size(config.gpus, config.engine_args)
    if known is not None and (problem := heads_problem(known, size)) is not None:
        raise ModelError(f"vLLM can't split {known.name} over {size} GPUs: {problem}. {split_advice(known, size)}")
    return config


def _absolute(place: str) -> str:
    """Return a folder as an absolute path, which is the same for every process. Return any other name as it is."""
    path = Path(place).expanduser()
    return str(path.resolve()) if path.is_dir() else place


def _default_gpus() -> float:
    """Return 1 if there is a GPU. Otherwise return 0, and log the reason once."""
    if on_ray():
        found = any(node.get("GPU", 0.0) >= 1 for node in nodes_of_cluster())
        return 1 if found else _log_cpu("no node of the Ray cluster has a GPU")
    return 1 if visible_gpus() else _log_cpu("no GPU is visible")


def _log_cpu(why: str) -> float:
    if why not in _logged:
        _logged.add(why)
        logger.warning("%s: the model runs on the CPU (gpus=0). Pass gpus= to choose yourself.", why)
    return 0
