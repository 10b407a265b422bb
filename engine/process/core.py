"""vLLM's own asynchronous engine, behind the few calls that daft-vllm needs."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import logging
import time
import traceback
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import psutil

from daft_vllm.engine.drafts.start import draft_args, suits
from daft_vllm.engine.patches.front_end import forget_cached_environment, save_front_end_costs
from daft_vllm.engine.patches.registry import apply_patch, prepare_patches
from daft_vllm.engine.process.cause import died_of, start_error
from daft_vllm.engine.process.early_core import CoreStart, core_start, start_core_early, take_early_core
from daft_vllm.engine.process.early_main import gc_disabled, gc_frozen
from daft_vllm.engine.process.ending import outcome_of
from daft_vllm.engine.process.media_loader import MediaLoader
from daft_vllm.engine.process.step_watch import StepWatch
from daft_vllm.engine.requests.media import MediaError
from daft_vllm.engine.requests.outcome import ErrorCode, ErrorValue, Outcome
from daft_vllm.engine.scheduling.row import Row
from daft_vllm.engine.setup.adapters import adapter_args, download_adapters
from daft_vllm.engine.setup.config import EngineConfig, reasoning_parser, require_vllm
from daft_vllm.engine.setup.devices.build import check_build
from daft_vllm.engine.setup.environment import (
    core_environment,
    environment_variables,
    kept_variables,
    prepare_environment,
    start_args,
)
from daft_vllm.engine.setup.guardian import NewProcesses, kill_processes
from daft_vllm.engine.setup.log import LogFile, log_on_screen, own_warnings, quiet_thread, route_vllm_logger, start_log
from daft_vllm.engine.setup.model_files.pickles import safetensors_args
from daft_vllm.engine.setup.reproducible import GPU_VARIABLES, SET_BY_VLLM, check_machine
from daft_vllm.engine.text.detokenize import Detokenizer
from daft_vllm.engine.text.params import end_of_text
from daft_vllm.engine.text.reasoning import ReasoningSplitter, Split, check_parser
from daft_vllm.engine.text.tools import ToolReader
from daft_vllm.errors import EngineStartError, ModelError
from daft_vllm.wording import brief

if TYPE_CHECKING:
    from vllm import RequestOutput

logger = logging.getLogger("daft_vllm")

GRACE_SECONDS = 10.0
"""How long vLLM's processes may take to end by themselves in ``close()`` (6 seconds on two slow cores)."""


class Core:
    """One running ``AsyncLLM``. Every method but ``kill`` has to be called from the thread that called ``start``.

    It is an ``AsyncLLM``, not an ``LLM``: when vLLM's core process dies, ``AsyncLLM`` fails every request within a
    tenth of a second, but ``LLM`` waits for ever.
    """

    def __init__(
        self,
        llm: Any,
        watch: StepWatch,
        processes: Sequence[psutil.Process],
        log: LogFile,
        parser: str = "",
        adapters: Mapping[str, str] | None = None,
    ) -> None:
        self.llm = llm
        self.watch = watch
        self.processes = list(processes)
        self.log = log
        self._log_start = log.size()
        self._killed = False
        self._cores = list(llm.engine_core.resources.engine_manager.processes)
        self.max_model_len: int = llm.model_config.max_model_len
        self.max_num_seqs: int = llm.vllm_config.scheduler_config.max_num_seqs
        self.max_num_batched_tokens: int = llm.vllm_config.scheduler_config.max_num_batched_tokens
        self.block_size: int = llm.vllm_config.cache_config.block_size
        self._adapters = _lora_requests(adapters or {})
        self.media = MediaLoader(llm.renderer, self.max_model_len - 1)
        tokenizer = llm.renderer.get_tokenizer()
        self._reasoning = ReasoningSplitter(parser, tokenizer, llm.model_config) if parser else None
        self._tools = ToolReader(tokenizer, llm.model_config, parser)
        self._detokenizer = Detokenizer(tokenizer)
        self._end_of_text = end_of_text(llm.model_config)

    @classmethod
    def start(cls, config: EngineConfig, watch: StepWatch, processes: NewProcesses) -> Core:
        """Load the model, and block until vLLM is ready. From then on ``watch`` counts vLLM's steps.

        Args:
            config: how to start it.
            watch: counts its steps.
            processes: those that it starts. If the start fails, they are killed.

        Raises:
            MissingPackageError: vLLM is not installed.
            OptionError: vLLM refuses an engine argument, or the installed build cannot use the device.
            EngineStartError: vLLM did not start.
        """
        require_vllm()
        check_build(config.gpus)
        cpu = config.gpus == 0
        if config.reproducible:
            check_machine(config.gpus)
        prepare_environment(cpu=cpu)
        left_out = prepare_patches(cpu=cpu, adapters=bool(config.adapters), reproducible=config.reproducible)
        mode = GPU_VARIABLES if config.reproducible and not cpu else {}
        with environment_variables(mode), kept_variables(SET_BY_VLLM), core_start(start_log(), processes) as start:
            if not left_out & {"early_core", "openmp"}:
                in_core = config.parallel_size == 1 and "executor" not in left_out
                start_core_early(start, cpu=cpu, in_core=in_core, reproducible=config.reproducible)
            with gc_disabled(), quiet_thread():
                importlib.import_module("vllm.v1.engine.async_llm")
            apply_patch("early_core", take_early_core)
            with gc_frozen():
                core = cls._start(config, watch, left_out, start)
            if not log_on_screen():
                for warning in own_warnings(start.written()):
                    logger.warning(warning)
            return core

    @classmethod
    def _start(
        cls,
        config: EngineConfig,
        watch: StepWatch,
        left_out: Collection[str],
        start: CoreStart,
    ) -> Core:
        from vllm.config import StructuredOutputsConfig
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.async_llm import AsyncLLM

        cpu = config.gpus == 0
        adapters = download_adapters(config.adapters)
        args = start_args(config, left_out)
        args |= adapter_args(adapters, args)
        args |= safetensors_args(config.model, args)
        if isinstance(args["structured_outputs_config"], dict):  # vLLM sets attributes on it
            args["structured_outputs_config"] = StructuredOutputsConfig(**args["structured_outputs_config"])
        check_parser(reasoning_parser(config))
        forget_cached_environment()
        try:
            with quiet_thread():
                vllm_config = _vllm_config(config, args, left_out)
            wanted = vllm_config.model_config.max_model_len
            bind = cpu and "openmp" not in left_out
            variables = core_environment(cpu=cpu, reproducible=config.reproducible)
            with quiet_thread(), variables, _bound_threads(vllm_config, bind=bind):
                llm = AsyncLLM.from_vllm_config(
                    vllm_config,
                    usage_context=UsageContext.LLM_CLASS,
                    stat_loggers=[watch.logger_factory()],
                    disable_log_stats=True,
                )
        except Exception as e:
            exit_code = start.exit_code()
            start.processes.kill()
            written = start.written()
            start.log.write(traceback.format_exc())
            start.log.show()
            raise EngineStartError(start_error(config.model, e, written, exit_code, start.log.kept())) from None
        finally:
            route_vllm_logger()  # vLLM has set up its loggers again
        try:
            return cls._of(llm, config, watch, adapters, wanted, start.log)
        except BaseException:
            start.processes.kill()
            raise

    @classmethod
    def _of(
        cls, llm: Any, config: EngineConfig, watch: StepWatch, adapters: Mapping[str, str], wanted: int, log: LogFile
    ) -> Core:
        """Return the core of an ``AsyncLLM`` that has started. ``wanted`` is the context that its config asked for."""
        apply_patch("front_end_costs", functools.partial(save_front_end_costs, llm))
        if llm.model_config.max_model_len < wanted:
            logger.warning(
                "the context is %d tokens, not the model's %d: the memory left beside the weights is too small for a "
                "longer sequence. If you need a longer one, set max_model_len in engine_args: if it doesn't fit, vLLM "
                "then does not start.",
                llm.model_config.max_model_len,
                wanted,
            )
        return cls(llm, watch, _processes(llm), log, reasoning_parser(config), adapters)

    async def load_adapters(self, seconds: float) -> None:
        """Load every adapter now. If an adapter failed to load later, in a step, vLLM's core would die.

        Args:
            seconds: how long each of them may take.

        Raises:
            ModelError: vLLM can't load one.
        """
        for name, adapter in self._adapters.items():
            task = asyncio.ensure_future(self.llm.add_lora(adapter))
            deadline = time.monotonic() + seconds
            # When its core dies, vLLM 0.32 fails requests, but this call would wait for ever.
            while not task.done() and not self.is_dead() and time.monotonic() < deadline:
                await asyncio.wait([task], timeout=0.5)
            try:
                if not task.done():
                    task.cancel()
                    raise TimeoutError("its core died" if self.is_dead() else f"not done after {seconds:g} seconds")
                task.result()
            except Exception as e:
                raise ModelError(f"vLLM can't load the adapter {name!r} from {adapter.path!r}: {brief(e)}") from e

    async def generate(self, request_id: str, row: Row) -> Outcome:
        """Generate the answer of one row.

        Raises:
            vllm.v1.engine.exceptions.EngineDeadError: the engine has died, or is about to end. Any other failure is
                returned as the row's outcome.
        """
        from vllm.exceptions import VLLMClientError
        from vllm.inputs import tokens_input
        from vllm.v1.engine.exceptions import EngineDeadError

        last: RequestOutput | None = None
        try:
            more: dict[str, Any] = {}
            if self._reasoning is not None and row.constrained:  # otherwise vLLM looks at the prompt to find out
                more["reasoning_ended"] = not row.thinking
            if row.adapter is not None:
                more["lora_request"] = self._adapters[row.adapter]
            for attempt in range(2):
                prompt: Any = (
                    await self._with_media(row, resend=attempt > 0) if row.items else tokens_input(row.token_ids)
                )
                async for output in self.llm.generate(prompt, row.params, f"{request_id}.{attempt}", **more):
                    last = output
                # The core's media cache lacks this item: the row that should have sent it was cancelled. Send it again.
                if not row.items or last is None or last.outputs[0].finish_reason != "error":
                    break
        except EngineDeadError:
            raise
        except MediaError as e:
            return Outcome.failed(*e.error, prompt_tokens=row.prompt_tokens)
        except Exception as e:
            if self.is_dead():
                raise EngineDeadError from e
            cause = e.__cause__ or e  # vLLM wraps unexpected errors in an EngineGenerateError
            refused = isinstance(cause, (VLLMClientError, ValueError))
            code: ErrorCode = "invalid_request" if refused else "engine_error"
            return Outcome.failed(code, brief(cause), prompt_tokens=row.prompt_tokens)
        if last is not None and last.outputs[0].finish_reason == "abort":
            raise EngineDeadError  # nothing here aborts rows: the core is ending, after a SIGTERM for example
        if last is None:
            return Outcome.failed("engine_error", "vLLM returned no output", prompt_tokens=row.prompt_tokens)
        outcome = outcome_of(last, row, self._end_of_text)
        completion = last.outputs[0]
        try:
            if not row.params.detokenize:
                stopped = completion.finish_reason == "stop"
                prompt_ids = last.prompt_token_ids or ()
                text = self._detokenizer.text(prompt_ids, completion.token_ids, row.params, stopped=stopped)
                outcome = outcome._replace(text=text)
            return self._split_answer(outcome, completion.token_ids, row)
        except Exception as e:  # vLLM has many parsers, and they read whatever a model wrote
            error = ErrorValue("invalid_output", f"the answer can't be parsed: {brief(e)}")
            return outcome._replace(error=error)

    def _split_answer(self, outcome: Outcome, token_ids: Sequence[int], row: Row) -> Outcome:
        """Return the outcome with the model's thinking and its tool calls separated from the text."""
        if row.toolbox is not None:
            return self._tools.read(outcome, token_ids, row.toolbox, thinking=bool(row.thinking))
        if row.thinking and self._reasoning is not None:
            return _without_thinking(outcome, self._reasoning.split(token_ids))
        return outcome

    async def _with_media(self, row: Row, *, resend: bool) -> Any:
        try:
            return await self.media.prompt(row, resend=resend)
        finally:  # this counts as progress: vLLM may have nothing to do while media load
            self.watch.last_step = time.monotonic()

    def is_dead(self) -> bool:
        """Whether vLLM has noticed that its core is gone."""
        return self.llm is None or bool(self.llm.errored)

    def death(self) -> str:
        """Return what is known about why this vLLM died, and where its log is. Callable from any thread."""
        self.log.show()
        exit_code = next((core.exitcode for core in self._cores if core.exitcode and not self._killed), None)
        return died_of(self.log.read(self._log_start), exit_code, self.log.kept())

    def shutdown(self, grace: float = GRACE_SECONDS) -> None:
        """Stop vLLM and leave no process behind. Safe to call twice.

        Args:
            grace: seconds that vLLM's processes get to end by themselves before they are killed.
        """
        self.media.close()
        if grace <= 0:
            self.kill()
        if self.llm is not None:
            with contextlib.suppress(Exception):
                forget_cached_environment()
                self.llm.shutdown(timeout=grace)
            self.llm.shutdown = lambda *_: None  # its __del__ calls it, and would fail while the interpreter exits
            self.llm = None
        self.kill()

    def kill(self) -> None:
        """Kill vLLM's processes at once. Callable from any thread."""
        self._killed = True
        kill_processes(self.processes)


def _bound_threads(vllm_config: Any, *, bind: bool) -> contextlib.AbstractContextManager[None]:
    """Set the variables that bind OpenMP's threads to CPUs, for a core that is started inside the ``with`` block."""
    if not bind:
        return contextlib.nullcontext()
    from vllm.utils.ompmultiprocessing import OMPProcessManager

    bound: contextlib.AbstractContextManager[None] = OMPProcessManager(vllm_config).configure_omp_envs(
        rank=0, local_rank=0
    )
    return bound


def _vllm_config(config: EngineConfig, args: Mapping[str, Any], left_out: Collection[str]) -> Any:
    """Return vLLM's own config, with guesses if the model's tokens can be verified."""
    from vllm import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

    def made(more: Mapping[str, Any]) -> Any:
        # vLLM's own class LLM uses this context. With another one max_num_batched_tokens and max_num_seqs default
        # to 2048 and 128. With this one they default to 8192 and 256 or to 16384 and 1024, depending on the GPU.
        engine_args = AsyncEngineArgs(model=config.model, disable_log_stats=True, **{**args, **more})
        return engine_args.create_engine_config(UsageContext.LLM_CLASS)

    drafts = draft_args(config, left_out)
    if not drafts:
        return made({})
    found = made(drafts)
    return found if suits(found.model_config) else made({})


def _lora_requests(adapters: Mapping[str, str]) -> dict[str, Any]:
    from vllm.lora.request import LoRARequest

    return {name: LoRARequest(name, number, folder) for number, (name, folder) in enumerate(adapters.items(), 1)}


def _processes(llm: Any) -> list[psutil.Process]:
    """Return vLLM's core and its workers."""
    found = []
    for core in llm.engine_core.resources.engine_manager.processes:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(core.pid)
            found += [process, *process.children(recursive=True)]
    return found


def _without_thinking(outcome: Outcome, split: Split) -> Outcome:
    error = outcome.error
    if split.answer is None and error is None:
        cut_off = outcome.finish_reason == "length"
        error = (
            ErrorValue("truncated", "the answer was cut off while the model was thinking: raise max_tokens")
            if cut_off
            else ErrorValue("invalid_output", "the model's thinking never ended, and it gave no answer")
        )
    return outcome._replace(text=split.answer, reasoning=split.reasoning, error=error)
