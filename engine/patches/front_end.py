"""What is changed in vLLM's front end, in the process that drives it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from multiprocessing.context import BaseContext, SpawnContext
from typing import TYPE_CHECKING, Any

from daft_vllm.engine.constraints.libraries.guidance import GUIDANCE_MARK

if TYPE_CHECKING:
    from vllm import SamplingParams


@functools.cache
def params_class() -> type[SamplingParams]:
    """Return vLLM's class, with the constraint that rows share checked once in place of with every row.

    The check builds the grammar anew each time: 1 ms a row for a schema of usual size (the median of those in
    ``benchmarks/guided/schemas``), 17 us being what all else of a row's bookkeeping takes.
    """
    from vllm import SamplingParams

    class CheckedOnce(SamplingParams):  # type: ignore[misc]  # vLLM's types are not followed
        def _validate_structured_outputs(self, *args: Any) -> None:
            shared = self.structured_outputs
            if shared is None or getattr(shared, "_daft_vllm_checked", False):
                return
            if shared.grammar is not None and shared.grammar.startswith(GUIDANCE_MARK):
                shared._backend = "xgrammar"  # as vLLM calls the backend that takes it; it was checked before
            else:
                super()._validate_structured_outputs(*args)
            shared._daft_vllm_checked = True

    return CheckedOnce


Run = Callable[[Callable[[], Any]], Any]
"""Returns what a function returns, maybe called in another process."""


def replace_launches(context: Callable[[SpawnContext], BaseContext], run: Callable[[Run], Run]) -> None:
    """Let vLLM start its core, and look at a model's class, in processes of ours. Once in a process.

    vLLM looks at the class in a process of its own, to keep CUDA out of this one.

    Args:
        context: returns the context of ``multiprocessing`` that vLLM starts its core with, given vLLM's own choice.
        run: returns the function that runs another in a process, given vLLM's own.
    """
    import vllm.model_executor.models.registry as registry
    import vllm.v1.engine.utils as launcher
    from vllm.utils.system_utils import get_mp_context

    if launcher.get_mp_context is not get_mp_context:
        return  # since an earlier engine

    def chosen_context() -> BaseContext:
        chosen: BaseContext = get_mp_context()
        return context(chosen) if isinstance(chosen, SpawnContext) else chosen

    launcher.get_mp_context, registry._run_in_subprocess = chosen_context, run(registry._run_in_subprocess)


def save_front_end_costs(llm: Any) -> None:
    """Turn off what costs the front end CPU time and nobody asks for here.

    vLLM's front end reads a variable twice for each token, and counts all of it for Prometheus: 8% and 6% of its CPU
    time at 16 tokens a row. Its core caches the variables by itself.
    """
    from vllm import envs
    from vllm.v1.metrics.loggers import PrometheusStatLogger

    envs.enable_envs_cache()
    llm.logger_manager.stat_loggers = [
        logger for logger in llm.logger_manager.stat_loggers if not isinstance(logger, PrometheusStatLogger)
    ]


def forget_cached_environment() -> None:
    """Let vLLM read its environment variables again: they may have changed since an earlier engine."""
    with contextlib.suppress(AttributeError):  # a vLLM that caches none
        from vllm import envs

        envs.disable_envs_cache()
