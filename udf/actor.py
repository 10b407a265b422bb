"""The actor that Daft runs: holds a picklable spec, opens the engine on first use, answers batch after batch."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import daft
import pyarrow as pa
from daft import DataType, Series
from daft.udf.metrics import increment_counter

from daft_vllm.engine import EngineConfig, OfflineEngine, Outcome, Request, SamplingOptions
from daft_vllm.engine.devices import GpuClaim, visible_gpus
from daft_vllm.engine.preflight import check_before_load
from daft_vllm.engine.request import count_by_code
from daft_vllm.errors import RowError
from daft_vllm.model_configs import resolve_model
from daft_vllm.udf.engines import shared_engine
from daft_vllm.udf.progress import ProgressWriter
from daft_vllm.udf.return_format import Parsed, ReturnFormat

logger = logging.getLogger("daft_vllm")


@dataclass(frozen=True)
class PromptSpec:
    """Everything a worker needs to answer a column. Picklable.

    Args:
        engine: how to start the engine.
        sampling: sampling options of every row.
        format: what every answer has to be.
        system_message: put before every prompt.
        apply_chat_template: False sends the prompts as they are.
        chat_template_kwargs: handed to the chat template.
        on_error: ``"null"`` leaves failed rows null, ``"raise"`` raises after the batch they are in.
        details: whether the column holds a struct with the value, or the value alone.
        claim_gpus: take free GPUs of this machine, because nobody else hands them out.
        progress_folder: where live counters are written. None: nowhere.
    """

    engine: EngineConfig
    sampling: SamplingOptions
    format: ReturnFormat
    system_message: str | None = None
    apply_chat_template: bool = True
    chat_template_kwargs: Mapping[str, Any] | None = None
    on_error: Literal["null", "raise"] = "null"
    details: bool = False
    claim_gpus: bool = False
    progress_folder: str | None = None

    @property
    def dtype(self) -> DataType:
        """Type of the result column."""
        return details_type(self.format.dtype) if self.details else self.format.dtype


def details_type(value: DataType) -> DataType:
    """Return the struct that ``details=True`` gives for values of type ``value``."""
    struct: DataType = DataType.struct(
        {
            "value": value,
            "text": DataType.string(),
            "finish_reason": DataType.string(),
            "prompt_tokens": DataType.int64(),
            "cached_tokens": DataType.int64(),
            "completion_tokens": DataType.int64(),
            "error": DataType.string(),
        }
    )
    return struct


class PromptActor:
    """Answers batches of prompts with this process's engine.

    The same class runs in a process of its own, in a Ray actor, and in the driver. Batches may come from several
    threads at once.
    """

    def __init__(self, spec: PromptSpec) -> None:
        self._spec = spec
        self._lock = threading.Lock()
        self._engine: OfflineEngine | None = None
        self._claim: GpuClaim | None = None
        self._progress: ProgressWriter | None = None
        self._invalid = 0

    def answer(self, prompts: Series) -> Series:
        """Answer one batch: a string series in, a series of the spec's type and the same length out."""
        spec = self._spec
        texts = prompts.to_pylist()
        requests = [
            Request(
                text,
                system_message=spec.system_message,
                sampling=spec.sampling,
                constraint=spec.format.constraint,
                apply_chat_template=spec.apply_chat_template,
                chat_template_kwargs=spec.chat_template_kwargs,
            )
            for text in texts
        ]
        outcomes = self._opened().run(requests) if requests else []
        parsed = [self._parse(outcome) for outcome in outcomes]
        self._report(outcomes, parsed)
        return self._series(outcomes, parsed).rename(prompts.name())

    def _opened(self) -> OfflineEngine:
        with self._lock:
            spec = self._spec
            if self._engine is None or self._engine.is_over:
                _leave_quickly()
                started = time.monotonic()
                config = replace(spec.engine, model=resolve_model(spec.engine.model))
                check_before_load(config, spec.format.constraint)
                if spec.claim_gpus and config.gpus > 0 and self._claim is None and not _in_ray_actor():
                    self._claim = GpuClaim(config.gpus, visible_gpus())
                    self._claim.apply()
                self._engine = shared_engine(config, check_chat_template=spec.apply_chat_template)
                logger.info("loaded %s in %.1f s", spec.engine.model, time.monotonic() - started)
                if spec.progress_folder is not None and self._progress is None:
                    self._progress = ProgressWriter(spec.progress_folder, self._counters)
            return self._engine

    def _parse(self, outcome: Outcome) -> Parsed:
        if outcome.error is not None or outcome.text is None:
            return Parsed(None, outcome.error)
        return self._spec.format.parse(outcome.text)

    def _report(self, outcomes: list[Outcome], parsed: list[Parsed]) -> None:
        """Count the batch into Daft's metrics, and say or raise what failed in it."""
        failed = [p.error for p in parsed if p.error is not None and p.error.code != "null_prompt"]
        increment_counter("rows", len(outcomes), description="rows answered, failed ones among them")
        increment_counter("rows failed", len(failed), description="rows with an error in place of a value")
        for name in ("prompt_tokens", "cached_tokens", "completion_tokens"):
            increment_counter(name.replace("_", " "), sum(getattr(outcome, name) for outcome in outcomes))
        with self._lock:
            self._invalid += sum(p.error is not None and o.error is None for p, o in zip(parsed, outcomes, strict=True))
        if self._progress is not None:
            self._progress.write()
        if failed:
            counts = count_by_code([Outcome(error=error) for error in failed])
            summary = ", ".join(f"{code} {count}" for code, count in counts.items())
            message = f"{len(failed)} of {len(outcomes)} rows have no value ({summary}); the first: {failed[0]}"
            if self._spec.on_error == "raise":
                raise RowError(message)
            logger.warning(message)

    def _counters(self) -> Mapping[str, float]:
        """Return the engine's counters, with answers that don't satisfy their format among the failed rows."""
        counters = self._engine.stats().as_dict() if self._engine is not None else {}
        return {**counters, "failed": counters.get("failed", 0) + self._invalid}

    def _series(self, outcomes: list[Outcome], parsed: list[Parsed]) -> Series:
        spec = self._spec
        values = pa.array([p.value for p in parsed], type=spec.format.dtype.to_arrow_dtype())
        if not spec.details:
            return Series.from_arrow(values, dtype=spec.dtype)
        columns = {
            "value": values,
            "text": pa.array([o.text for o in outcomes], type=pa.large_string()),
            "finish_reason": pa.array([o.finish_reason for o in outcomes], type=pa.large_string()),
            "prompt_tokens": pa.array([o.prompt_tokens for o in outcomes], type=pa.int64()),
            "cached_tokens": pa.array([o.cached_tokens for o in outcomes], type=pa.int64()),
            "completion_tokens": pa.array([o.completion_tokens for o in outcomes], type=pa.int64()),
            "error": pa.array([str(p.error) if p.error else None for p in parsed], type=pa.large_string()),
        }
        struct = pa.StructArray.from_arrays(list(columns.values()), names=list(columns))
        return Series.from_arrow(struct, dtype=spec.dtype)


def actor_expression(
    spec: PromptSpec,
    prompts: daft.Expression,
    *,
    use_process: bool,
    max_concurrency: int,
    batch_size: int,
) -> daft.Expression:
    """Return the expression that answers ``prompts`` on actors with ``spec``; see ``prompt`` for the rest.

    Daft 0.7 starts processes whenever ``max_concurrency`` is set, whatever ``use_process`` says.
    """

    class Prompt(PromptActor):
        @daft.method.batch(return_dtype=spec.dtype, batch_size=batch_size)
        def __call__(self, prompts: Series) -> Series:
            return self.answer(prompts)

    wrapped = daft.cls(
        gpus=spec.engine.gpus,
        use_process=use_process,
        max_concurrency=max_concurrency if use_process else None,
        name_override="prompt",
    )(Prompt)
    expression: daft.Expression = wrapped(spec)(prompts)
    return expression


def _leave_quickly() -> None:
    """Let a UDF process of Daft's native runner end without tearing torch down.

    Daft waits 5 seconds for it and then reports an error; torch and vLLM alone may take 3 of them. By then every batch
    has been handed over. Registered before the engine is opened, so it runs after the engine's own exit function.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name == "daft.execution.udf_worker":
        atexit.register(_end_process)


def _end_process() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _in_ray_actor() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized() and ray.get_runtime_context().get_actor_id() is not None
