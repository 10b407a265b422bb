"""Changes of vLLM's front end, the part of vLLM that runs in the process that drives it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from multiprocessing.context import BaseContext, SpawnContext
from typing import TYPE_CHECKING, Any

from daft_vllm.engine.constraints.libraries.guidance import GUIDANCE_MARK
from daft_vllm.engine.drafts.start import is_ours

if TYPE_CHECKING:
    from vllm import SamplingParams


@functools.cache
def params_class() -> type[SamplingParams]:
    """Return a subclass of vLLM's ``SamplingParams`` that checks a constraint once for all rows that share it.

    vLLM checks it for every row, and builds the grammar again each time. That takes 1 ms a row for a schema of usual
    size (the median of those in ``benchmarks/guided/schemas``). All other bookkeeping takes 17 us a row.
    """
    from vllm import SamplingParams

    class CheckedOnce(SamplingParams):  # type: ignore[misc]  # vLLM's types are not followed
        def _validate_structured_outputs(self, *args: Any) -> None:
            shared = self.structured_outputs
            if shared is None or getattr(shared, "_daft_vllm_checked", False):
                return
            if shared.grammar is not None and shared.grammar.startswith(GUIDANCE_MARK):
                shared._backend = "xgrammar"  # vLLM's name for our backend; the grammar was checked before
            else:
                super()._validate_structured_outputs(*args)
            shared._daft_vllm_checked = True

        def _validate_spec_decode(self, speculative_config: Any) -> None:
            if not is_ours(speculative_config):  # ours: rows whose options vLLM would refuse get no guesses
                super()._validate_spec_decode(speculative_config)

    return CheckedOnce


Run = Callable[[Callable[[], Any]], Any]
"""Calls a function, maybe in another process, and returns its result."""


def replace_launches(
    context: Callable[[SpawnContext], BaseContext],
    run: Callable[[Run], Run],
    while_waiting: Callable[[], AbstractContextManager[None]],
) -> None:
    """Let vLLM use our processes to start its core and to look at a model's class. The first call in a process counts.

    vLLM looks at the class in another process, so that CUDA is not initialized in this one.

    Args:
        context: takes the context of ``multiprocessing`` that vLLM chose, and returns the one to start the core with.
        run: takes vLLM's function that calls another function in a process, and returns a replacement for it.
        while_waiting: what this thread does while it waits for a core that loads its model.
    """
    import vllm.model_executor.models.registry as registry
    import vllm.v1.engine.utils as launcher
    from vllm.utils.system_utils import get_mp_context

    if launcher.get_mp_context is not get_mp_context:
        return  # an earlier engine has replaced it

    def chosen_context() -> BaseContext:
        chosen: BaseContext = get_mp_context()
        return context(chosen) if isinstance(chosen, SpawnContext) else chosen

    theirs = launcher.wait_for_engine_startup

    @functools.wraps(theirs)
    def wait(*args: Any, **more: Any) -> Any:
        with while_waiting():
            return theirs(*args, **more)

    launcher.get_mp_context, registry._run_in_subprocess = chosen_context, run(registry._run_in_subprocess)
    launcher.wait_for_engine_startup = wait


def save_front_end_costs(llm: Any) -> None:
    """Turn off two things that cost the front end CPU time and are not used here.

    For each token vLLM's front end reads an environment variable twice, and updates counters for Prometheus. That takes
    8% and 6% of its CPU time at 16 tokens a row. vLLM's core caches the variables by itself.
    """
    from vllm import envs
    from vllm.v1.metrics.loggers import PrometheusStatLogger

    envs.enable_envs_cache()
    llm.logger_manager.stat_loggers = [
        logger for logger in llm.logger_manager.stat_loggers if not isinstance(logger, PrometheusStatLogger)
    ]


def forget_cached_environment() -> None:
    """Let vLLM read its environment variables again: they may have changed since an earlier engine."""
    with contextlib.suppress(AttributeError):  # this vLLM has no such cache
        from vllm import envs

        envs.disable_envs_cache()
