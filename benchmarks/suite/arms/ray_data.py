"""Ray Data's ``ray.data.llm``: a vLLM engine in an actor of a pipeline."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from benchmarks.suite.arms.base import EngineSetting, Measured, NotExpressible, in_row_order
from benchmarks.suite.arms.sampling import sampling_kwargs
from benchmarks.suite.job import Job

BATCH_SIZE = 64
CPUS = 2
# Ray sets OMP_NUM_THREADS to an actor's num_cpus, and vLLM then gives the model only that many threads.
THREADS = str(os.cpu_count())


class RayData:
    """``ray-data``: its documented pipeline without the chat template, tokenized by the engine.

    Each execution of the pipeline starts an actor that loads the model. The engine records when each request arrives. A
    run's seconds start at the first arrival. So loading is left out, and the start of the pipeline too, which favours
    the peer. The rows report neither cached tokens nor running sequences.
    """

    def __init__(self, name: str, setting: EngineSetting) -> None:
        self._setting = setting

    def open(self) -> float:
        """Start a local Ray; the model is loaded by each run."""
        try:
            import ray
            import ray.data.llm
        except ImportError as e:
            raise NotExpressible(f"ray.data.llm cannot be imported: {e}") from e
        # Ray's workers have to import this module: it has the functions that they apply to rows.
        path = [str(Path(__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {"OMP_NUM_THREADS": THREADS, "PYTHONPATH": os.pathsep.join(path)}
        ray.init(
            num_cpus=CPUS if self._setting.gpus == 0 else None,
            include_dashboard=False,
            log_to_driver=True,
            runtime_env={"env_vars": environment},
        )
        ray.data.DataContext.get_current().enable_progress_bars = False
        return 0.0

    def run(self, job: Job) -> Measured:
        """Build the pipeline, run it and collect its rows."""
        import ray
        from ray.data.llm import build_processor, vLLMEngineProcessorConfig

        started = time.time()
        # By default Ray reserves a GPU for the actor of each engine.
        placement = {"bundles": [{"CPU": 1}]} if self._setting.gpus == 0 else None
        config = vLLMEngineProcessorConfig(
            model_source=self._setting.model,
            engine_kwargs=dict(self._setting.engine_args),
            batch_size=BATCH_SIZE,
            concurrency=1,
            chat_template_stage=False,
            tokenize_stage=False,
            detokenize_stage=False,
            placement_group_config=placement,
            # Metrics for a Prometheus endpoint that nobody reads; ray without its llm extra cannot make them.
            log_engine_metrics=False,
        )
        processor = build_processor(config, preprocess=_Preprocess(job), postprocess=_postprocess)
        rows = [
            {"id": row, "prompt": prompt, "limit": limit}
            for row, (prompt, limit) in enumerate(zip(job.prompts, job.limits(), strict=True))
        ]
        found = processor(ray.data.from_items(rows)).take_all()
        over = time.time()
        texts = in_row_order([row["id"] for row in found], [row["text"] for row in found], job.rows)
        first = min(row["arrival_time"] for row in found)
        prompt_tokens = sum(row["prompt_tokens"] for row in found)
        output_tokens = sum(row["output_tokens"] for row in found)
        return Measured(over - first, texts, prompt_tokens, load_seconds=first - started, output_tokens=output_tokens)

    def close(self) -> None:
        """Stop Ray."""
        import ray

        ray.shutdown()


class _Preprocess:
    """Turns a row into what the engine's stage takes."""

    def __init__(self, job: Job) -> None:
        self._options = {limit: sampling_kwargs(job, limit) for limit in set(job.limits())}
        if job.schema is not None:
            for options in self._options.values():
                options["structured_outputs"] = {"json": json.dumps(job.schema)}

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return {"id": row["id"], "prompt": row["prompt"], "sampling_params": self._options[row["limit"]]}


def _postprocess(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": row["id"],
        "text": row["generated_text"],
        "prompt_tokens": row["num_input_tokens"],
        "output_tokens": row["num_generated_tokens"],
        "arrival_time": row["metrics"]["arrival_time"],
    }
