"""Every place where daft-vllm changes vLLM, or relies on what vLLM doesn't promise: one entry each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from daft_vllm.engine.patches.targets import Target

Process = Literal["front end", "core"]


@dataclass(frozen=True)
class Patch:
    """One place.

    Attributes:
        name: its name, that of the module in this folder where there is one.
        does: what is changed, or relied on.
        without: what an engine without it does.
        targets: what it needs in vLLM.
        process: where it is applied: in the process that drives vLLM, or in the core's.
        required: whether no engine can run without it.
        required_with_adapters: whether no engine with LoRA adapters can.
        cpu_only: whether engines on GPUs do without it.
        needs: another patch that it is applied by.
        seen: releases of vLLM with which its tests were run.
    """

    name: str
    does: str
    without: str
    targets: tuple[Target, ...]
    process: Process
    required: bool = False
    required_with_adapters: bool = False
    cpu_only: bool = False
    needs: str | None = None
    seen: tuple[str, ...] = ("0.32.0",)


PATCHES: tuple[Patch, ...] = (
    Patch(
        "either_backend",
        "replaces vLLM's XgrammarBackend by one that gives guidance's grammars to guidance",
        "rows that need guidance could not be answered",
        (
            Target("vllm.v1.structured_output", "XgrammarBackend"),
            Target("vllm.v1.structured_output.backend_xgrammar", "XgrammarBackend.__post_init__"),
            Target(
                "vllm.v1.structured_output.backend_xgrammar",
                "XgrammarBackend.compile_grammar",
                ("self", "request_type", "grammar_spec", "stop_token_ids"),
            ),
            Target(
                "vllm.v1.structured_output.backend_xgrammar",
                "XgrammarBackend.allocate_token_bitmask",
                ("self", "max_num_seqs"),
            ),
            Target("vllm.v1.structured_output.backend_guidance", "GuidanceBackend", uses="self.ll_tokenizer ="),
            Target("vllm.v1.structured_output.backend_guidance", "GuidanceGrammar.ll_matcher"),
            Target("vllm.v1.structured_output.backend_guidance", "GuidanceGrammar.ll_tokenizer"),
            Target("vllm.v1.structured_output.backend_guidance", "GuidanceGrammar.vocab_size"),
        ),
        "core",
        required=True,
    ),
    Patch(
        "checked_once",
        "lets rows that share a constraint share vLLM's check of it, and guidance's grammars pass the check",
        "rows that need guidance would be refused",
        (
            Target(
                "vllm.sampling_params",
                "SamplingParams._validate_structured_outputs",
                uses="self._validate_structured_outputs(",
            ),
            Target("vllm.sampling_params", "StructuredOutputsParams._backend"),
        ),
        "front end",
        required=True,
    ),
    Patch(
        "statistics",
        "counts the steps of vLLM's scheduler, by which a stalled engine is known",
        "an engine that stalls would never be noticed",
        (
            Target(
                "vllm.v1.metrics.loggers",
                "StatLoggerBase.record",
                ("self", "scheduler_stats", "iteration_stats", "mm_cache_stats", "engine_idx"),
            ),
            Target("vllm.v1.metrics.stats", "SchedulerStats.num_running_reqs"),
            Target(
                "vllm.v1.engine.async_llm",
                "AsyncLLM.from_vllm_config",
                ("cls", "vllm_config", "usage_context", "stat_loggers", "disable_log_stats"),
            ),
        ),
        "front end",
        required=True,
    ),
    Patch(
        "processes",
        "finds vLLM's processes, to end them with the engine and to restart it when they die",
        "processes could be left behind, with the GPU's memory",
        (
            Target("vllm.v1.engine.core_client", "BackgroundResources.engine_manager"),
            Target("vllm.v1.engine.utils", "CoreEngineProcManager", uses="self.processes"),
            Target("vllm.v1.engine.async_llm", "AsyncLLM.errored"),
            Target("vllm.v1.engine.async_llm", "AsyncLLM.shutdown", ("self", "timeout")),
        ),
        "front end",
        required=True,
    ),
    Patch(
        "names",
        "imports what vLLM doesn't promise to keep: the ends of its start, its parsers, its readers of media",
        "no row could be answered",
        (
            Target("vllm.config", "StructuredOutputsConfig"),
            Target("vllm.config.lora", "MaxLoRARanks"),
            Target("vllm.engine.arg_utils", "AsyncEngineArgs"),
            Target("vllm.entrypoints.openai.chat_completion.protocol", "ChatCompletionRequest"),
            Target("vllm.exceptions", "VLLMClientError"),
            Target("vllm.inputs", "tokens_input"),
            Target("vllm.lora.request", "LoRARequest"),
            Target("vllm.model_executor.model_loader", "get_model_cls"),
            # open_image has the list of formats that are read from strangers: releases before 0.32 read all.
            Target("vllm.multimodal.image", "open_image"),
            Target("vllm.multimodal.image", "normalize_image"),
            Target("vllm.multimodal.image", "convert_image_mode"),
            Target("vllm.multimodal.media", "AudioMediaIO"),
            Target("vllm.multimodal.media", "ImageMediaIO"),
            Target("vllm.parser", "ParserManager"),
            Target("vllm.platforms", "current_platform"),
            Target("vllm.plugins", "load_general_plugins"),
            Target("vllm.reasoning", "ReasoningParserManager"),
            Target("vllm.renderers.hf", "resolve_chat_template"),
            Target("vllm.renderers.params", "ChatParams"),
            Target("vllm.sampling_params", "SamplingParams"),
            Target("vllm.sampling_params", "StructuredOutputsParams"),
            Target("vllm.sampling_params", "RequestOutputKind"),
            Target("vllm.tool_parsers", "ToolParserManager"),
            Target("vllm.usage.usage_lib", "UsageContext"),
            Target("vllm.v1.engine.async_llm", "AsyncLLM"),
            Target("vllm.v1.engine.detokenizer", "uses_fast_detokenizer"),
            Target("vllm.v1.engine.exceptions", "EngineDeadError"),
        ),
        "front end",
        required=True,
    ),
    Patch(
        "front_end_costs",
        "drops vLLM's Prometheus counters and caches its environment variables: 14% of the front end's CPU time",
        "the front end takes more CPU time for each token",
        (
            Target("vllm.v1.metrics.loggers", "PrometheusStatLogger"),
            Target("vllm.v1.metrics.loggers", "StatLoggerManager", uses="self.stat_loggers"),
            Target("vllm.envs", "enable_envs_cache"),
            Target("vllm.envs", "disable_envs_cache"),
        ),
        "front end",
    ),
    Patch(
        "early_core",
        "starts vLLM's core while this process still imports vLLM, and lets vLLM take it",
        "an engine takes twice as long to start",
        (
            Target("vllm.v1.engine.utils", "get_mp_context", uses="= get_mp_context()"),
            Target("vllm.utils.system_utils", "get_mp_context"),
            Target("vllm.model_executor.models.registry", "_run_in_subprocess", ("fn",)),
            Target("multiprocessing.util", "spawnv_passfds", ("path", "args", "passfds")),
            Target("multiprocessing.util", "_args_from_interpreter_flags"),
            Target("multiprocessing.popen_spawn_posix", "Popen._launch", ("self", "process_obj")),
            Target("multiprocessing.spawn", "spawn_main", ("pipe_handle", "parent_pid", "tracker_fd")),
            Target("multiprocessing.spawn", "get_preparation_data", ("name",)),
            Target("multiprocessing.context", "SpawnProcess._Popen"),
        ),
        "front end",
    ),
    Patch(
        "openmp",
        "knows beforehand which CPUs vLLM binds a core's threads to, and binds them",
        "vLLM starts its core itself, which takes longer, and binds no threads",
        (
            Target(
                "vllm.utils.ompmultiprocessing", "OMPProcessManager.configure_omp_envs", ("self", "rank", "local_rank")
            ),
            Target("vllm.platforms.cpu", "CpuPlatform.check_and_update_config", uses="LD_PRELOAD"),
        ),
        "front end",
        cpu_only=True,
    ),
    Patch(
        "argument_names",
        "reads the names of vLLM's engine arguments and architectures from its source text",
        "a misspelt argument, or a model that vLLM doesn't serve, is found when the engine starts",
        (
            Target("vllm.engine.arg_utils", "EngineArgs.max_model_len"),
            Target("vllm.engine.arg_utils", "AsyncEngineArgs"),
            Target("vllm.model_executor.models.registry", "_TEXT_GENERATION_MODELS"),
        ),
        "front end",
    ),
    Patch(
        "executor",
        "runs the model in the core's process on a CPU, and applies the patches of the model runner there",
        "the model runs in a process of its own, which takes longer to start and is slower",
        (
            Target("vllm.v1.executor.uniproc_executor", "UniProcExecutor._init_executor", ("self",)),
            Target("vllm.platforms.cpu", uses='distributed_executor_backend == "uni"'),
        ),
        "core",
        cpu_only=True,
    ),
    Patch(
        "kernels",
        "offers vLLM's compiled kernels for RMS normalization to it, on a CPU with AMX",
        "a step takes up to a fifth longer on a CPU with AMX",
        (
            Target("vllm.ir.op", "IrOp.register_impl", ("self", "provider", "supported", "supports_args", "inplace")),
            Target("vllm.ir.ops.layernorm", "rms_norm", ("x", "weight", "epsilon", "variance_size")),
            Target(
                "vllm.ir.ops.layernorm",
                "fused_add_rms_norm",
                ("x", "x_residual", "weight", "epsilon", "variance_size"),
            ),
        ),
        "core",
        cpu_only=True,
        needs="executor",
    ),
    Patch(
        "generators",
        "gives the random generators of seeded rows a way back, which torch has on GPUs only",
        "a seeded row with a prompt longer than a step would end the engine",
        (Target("vllm.v1.worker.gpu_model_runner", uses=".set_offset("),),
        "core",
        cpu_only=True,
        needs="executor",
    ),
    Patch(
        "masks",
        "puts token masks on 16-bit logits without widening them, on a CPU with vLLM's V1 model runner",
        "a step with constraints takes up to a quarter longer on a CPU",
        (
            # Without a name, a module isn't parsed: this one has 7,000 lines.
            Target("vllm.v1.worker.gpu_model_runner", uses="import apply_grammar_bitmask\n"),
            Target("vllm.v1.worker.gpu_model_runner", uses=" apply_grammar_bitmask("),
            Target(
                "vllm.v1.structured_output.utils",
                "apply_grammar_bitmask",
                ("scheduler_output", "grammar_output", "input_batch", "logits"),
            ),
        ),
        "core",
        cpu_only=True,
        needs="executor",
    ),
    Patch(
        "adapter_ops",
        "keeps rows without an adapter apart from those with one, on a CPU",
        "on a CPU, rows without an adapter would get another row's adapter",
        tuple(
            target
            for name in ("bgmv_shrink", "bgmv_expand", "bgmv_expand_slice")
            for target in (
                Target(
                    "vllm.lora.ops.torch_ops.lora_ops",
                    name,
                    ("inputs", "lora_b_weights", "output_tensor", "lora_indices_tensor"),
                ),
                Target("vllm.lora.punica_wrapper.punica_cpu", name),
            )
        ),
        "core",
        required_with_adapters=True,
        cpu_only=True,
    ),
)
"""In the order in which an engine meets them."""
