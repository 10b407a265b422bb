"""Opens the engine that a spec asks for, with every check that needs the model."""

from __future__ import annotations

import logging
import sys
import time
from dataclasses import replace

from daft_vllm.engine import OfflineEngine, Request
from daft_vllm.engine.setup.preflight import check_before_load
from daft_vllm.engine.text.tools import check_tool_parser
from daft_vllm.model_configs import resolve_model
from daft_vllm.udf.worker.engines import kill_engines, shared_engine
from daft_vllm.udf.worker.leaving import leave_quickly, stand_alone
from daft_vllm.udf.worker.spec import PromptSpec
from daft_vllm.udf.worker.stopping import raise_if_stopped

logger = logging.getLogger("daft_vllm")


def opened_engine(spec: PromptSpec) -> OfflineEngine:
    """Return this process's engine for a spec, without answers of earlier queries. The model is loaded if it isn't yet.

    Raises:
        DaftVLLMError: the model can't be loaded, or doesn't do what the spec asks for; or the query was stopped.
    """
    stand_alone()
    leave_quickly(kill_engines)
    raise_if_stopped(spec.options.progress_folder, spec.board)
    started = time.monotonic()
    config = replace(spec.engine, model=resolve_model(spec.engine.model))
    check_before_load(config, spec.format.constraints, spec.sampling.model_dump())
    if spec.toolbox is not None:
        check_tool_parser(spec.toolbox.parser)
    engine = shared_engine(
        config,
        check_chat_template=spec.needs_chat_template,
        claim_gpus=spec.claim_gpus and not _in_ray_actor(),
        engines=spec.engines,
    )
    leave_quickly(kill_engines)
    raise_if_stopped(spec.options.progress_folder, spec.board)
    engine.check_truncation(spec.truncation)
    engine.check_media(spec.media)
    if spec.toolbox is not None:
        engine.check_tools(spec.toolbox, thinking=bool(spec.thinking))
    if spec.options.apply_chat_template is None and not engine.has_chat_template:
        logger.warning(
            "the model %r has no chat template: it gets the prompts as they are, and continues them. Pass "
            "chat_template=, or pass apply_chat_template=False if this is what you want.",
            spec.engine.model,
        )
    if spec.format.constraints:
        like = Request(
            None,
            apply_chat_template=spec.options.apply_chat_template,
            chat_template_kwargs=spec.chat_template_kwargs,
            thinking=spec.thinking,
        )
        engine.check_constraints(spec.format.constraints, like)
    engine.forget_answers()
    logger.info("engine for %s ready in %.1f s", spec.engine.model, time.monotonic() - started)
    return engine


def _in_ray_actor() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized() and ray.get_runtime_context().get_actor_id() is not None
