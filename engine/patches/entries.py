"""One entry for each place where daft-vllm changes vLLM, or relies on something that vLLM doesn't promise to keep."""

from __future__ import annotations

from daft_vllm.engine.patches.targets import Patch, Target

PATCHES: tuple[Patch, ...] = (
    Patch(
        "either_backend",
        "replaces vLLM's XgrammarBackend by one that passes guidance's grammars to guidance",
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
                "vllm.v1.structured_output.backend_guidance", "GuidanceGrammar.fill_bitmask", ("self", "bitmask", "idx")
            ),
            Target("vllm.v1.structured_output.backend_guidance", "GuidanceBackend", uses="self.ll_tokenizer ="),
            Target("vllm.v1.structured_output.backend_guidance", "GuidanceGrammar.ll_matcher"),
            Target("vllm.v1.structured_output.backend_guidance", "GuidanceGrammar.ll_tokenizer"),
            Target("vllm.v1.structured_output.backend_guidance", "GuidanceGrammar.vocab_size"),
        ),
        "patches/plugin.py",
        required=True,
    ),
    Patch(
        "checked_once",
        "checks a constraint once for all rows that share it, and lets guidance's grammars pass vLLM's check",
        "rows that need guidance would be refused",
        (
            Target(
                "vllm.sampling_params",
                "SamplingParams._validate_structured_outputs",
                uses="self._validate_structured_outputs(",
            ),
            Target("vllm.sampling_params", "StructuredOutputsParams._backend"),
        ),
        "text/params.py",
        applied=False,
        required=True,
    ),
    Patch(
        "statistics",
        "counts the steps of vLLM's scheduler, to notice an engine that stalls",
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
        "process/step_watch.py",
        applied=False,
        required=True,
    ),
    Patch(
        "processes",
        "finds vLLM's processes, to end them with the engine and to restart it when they die",
        "processes could be left behind, and keep the GPU's memory",
        (
            Target("vllm.v1.engine.core_client", "BackgroundResources.engine_manager"),
            Target("vllm.v1.engine.utils", "CoreEngineProcManager", uses="self.processes"),
            Target("vllm.v1.engine.async_llm", "AsyncLLM.errored"),
            Target("vllm.v1.engine.async_llm", "AsyncLLM.shutdown", ("self", "timeout")),
        ),
        "process/core.py",
        applied=False,
        required=True,
    ),
    Patch(
        "names",
        "imports names that vLLM doesn't promise to keep: those that start it, its parsers, its readers of media",
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
            # open_image reads only an allowed list of formats, which untrusted data needs. Before 0.32 vLLM read all.
            Target("vllm.multimodal.image", "open_image"),
            Target("vllm.multimodal.image", "normalize_image"),
            Target("vllm.multimodal.image", "convert_image_mode"),
            Target("vllm.multimodal.media", "AudioMediaIO"),
            Target("vllm.multimodal.media", "MediaWithBytes"),
            Target("vllm.parser", "ParserManager"),
            Target(
                "vllm.parser.parser_manager",
                "ParserManager.get_parser",
                (
                    "tool_parser_name",
                    "reasoning_parser_name",
                    "enable_auto_tools",
                    "model_name",
                    "is_harmony",
                    "tokenizer",
                ),
            ),
            Target(
                "vllm.parser.abstract_parser",
                "Parser.parse",
                ("self", "model_output", "request", "enable_auto_tools", "model_output_token_ids"),
            ),
            Target("vllm.platforms", "current_platform"),
            Target("vllm.plugins", "load_general_plugins"),
            Target("vllm.reasoning", "ReasoningParserManager"),
            Target("vllm.renderers.base", "BaseRenderer.process_for_engine_async", ("self", "prompt", "skip_mm_cache")),
            Target(
                "vllm.renderers.hf", "resolve_chat_template", ("tokenizer", "chat_template", "tools", "model_config")
            ),
            Target("vllm.renderers.params", "ChatParams"),
            Target("vllm.sampling_params", "SamplingParams"),
            Target("vllm.sampling_params", "StructuredOutputsParams"),
            Target("vllm.sampling_params", "RequestOutputKind"),
            Target("vllm.tool_parsers", "ToolParserManager"),
            Target("vllm.transformers_utils.repo_utils", "list_filtered_repo_files"),
            Target("vllm.usage.usage_lib", "UsageContext"),
            Target(
                "vllm.v1.engine.async_llm",
                "AsyncLLM.generate",
                ("self", "prompt", "sampling_params", "request_id", "lora_request", "reasoning_ended"),
            ),
            Target("vllm.v1.engine.detokenizer", "uses_fast_detokenizer"),
            Target("vllm.v1.engine.exceptions", "EngineDeadError"),
        ),
        "process/core.py",
        applied=False,
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
        "process/core.py",
    ),
    Patch(
        "drafts",
        "guesses tokens, which vLLM verifies: what grammars force, what earlier rows wrote, what the prompt has",
        "each token takes a step of its own",
        (
            Target("vllm.v1.core.sched.scheduler", "Scheduler.schedule"),
            Target(
                "vllm.v1.core.sched.scheduler",
                "Scheduler.update_from_output",
                ("self", "scheduler_output", "model_runner_output"),
            ),
            Target("vllm.v1.core.sched.scheduler", "Scheduler.update_draft_token_ids", ("self", "draft_token_ids")),
            Target("vllm.v1.core.sched.scheduler", uses="if request.spec_token_ids:"),
            Target("vllm.v1.core.sched.scheduler", uses="self.num_spec_tokens = vllm_config.num_speculative_tokens"),
            Target("vllm.v1.core.block_pool", "BlockPool.get_num_free_blocks"),
            Target("vllm.v1.core.sched.output", "SchedulerOutput.total_num_scheduled_tokens"),
            # Those without a name are in large modules, which aren't parsed then.
            Target("vllm.v1.engine.core", uses="self.scheduler.update_draft_token_ids("),
            Target(
                "vllm.v1.structured_output",
                "StructuredOutputManager._get_constraint_bounds",
                ("self", "request", "spec_tokens"),
            ),
            Target("vllm.v1.structured_output.backend_xgrammar", "XgrammarGrammar.matcher"),
            Target("vllm.v1.structured_output.backend_guidance", "GuidanceGrammar.ll_matcher"),
            Target("vllm.v1.structured_output.request", "StructuredOutputRequest.structured_output_key"),
            Target("vllm.v1.sample.logits_processor", "build_logitsprocs", ("vllm_config",)),
            Target("vllm.v1.worker.gpu_model_runner", uses=", build_logitsprocs\n"),
            Target(
                "vllm.v1.sample.rejection_sampler",
                "expand_batch_to_tokens",
                ("x", "cu_num_tokens", "num_tokens", "replace_from", "replace_to"),
            ),
            Target("vllm.v1.worker.gpu_model_runner", uses='self.speculative_config.method == "custom_class"'),
            Target("vllm.sampling_params", "SamplingParams._validate_spec_decode", ("self", "speculative_config")),
        ),
        "patches/plugin.py",
        cpu_only=True,
    ),
    Patch(
        "whole_answers",
        "lets vLLM's core send an answer's tokens when it is complete, in place of one message for each token",
        "the front end takes more CPU time for each token",
        (
            Target(
                "vllm.v1.core.sched.scheduler",
                "Scheduler.update_from_output",
                ("self", "scheduler_output", "model_runner_output"),
            ),
            Target("vllm.v1.core.sched.scheduler", "Scheduler", uses="self.requests"),
            Target("vllm.v1.core.sched.output", "SchedulerOutput.num_scheduled_tokens"),
            Target("vllm.v1.engine", "EngineCoreOutput.new_token_ids"),
            Target("vllm.v1.engine", "EngineCoreOutputs.outputs"),
            Target("vllm.v1.request", "Request", uses="self.output_token_ids"),
            Target("vllm.sampling_params", "SamplingParams.output_kind"),
        ),
        "patches/plugin.py",
    ),
    Patch(
        "early_core",
        "starts vLLM's core while this process still imports vLLM, and lets vLLM use it",
        "an engine takes twice as long to start",
        (
            Target("vllm.v1.engine.utils", "get_mp_context", uses="= get_mp_context()"),
            Target("vllm.v1.engine.utils", "wait_for_engine_startup"),
            Target("vllm.v1.engine.utils", "launch_core_engines", uses="wait_for_engine_startup("),
            Target("vllm.utils.system_utils", "get_mp_context"),
            Target("vllm.model_executor.models.registry", "_run_in_subprocess", ("fn",)),
            Target("multiprocessing.util", "spawnv_passfds", ("path", "args", "passfds")),
            Target("multiprocessing.util", "_args_from_interpreter_flags"),
            Target("multiprocessing.popen_spawn_posix", "Popen._launch", ("self", "process_obj")),
            Target("multiprocessing.spawn", "spawn_main", ("pipe_handle", "parent_pid", "tracker_fd")),
            Target("multiprocessing.spawn", "get_preparation_data", ("name",)),
            Target("multiprocessing.context", "SpawnProcess._Popen"),
        ),
        "process/core.py",
    ),
    Patch(
        "openmp",
        "predicts which CPUs vLLM binds a core's threads to, and binds them",
        "vLLM starts its core itself, which takes longer, and binds no threads",
        (
            Target(
                "vllm.utils.ompmultiprocessing", "OMPProcessManager.configure_omp_envs", ("self", "rank", "local_rank")
            ),
            Target("vllm.platforms.cpu", "CpuPlatform.check_and_update_config", uses="LD_PRELOAD"),
        ),
        "process/core.py",
        applied=False,
        cpu_only=True,
    ),
    Patch(
        "leftovers",
        "lets vLLM's processes put their files into a folder of the engine, and name shared memory after it",
        "what killed processes leave in the temporary folder and in /dev/shm stays there",
        (
            Target("vllm.utils.network_utils", "get_file_store_init_method", ()),
            Target("vllm.v1.executor.uniproc_executor", uses="distributed_init_method = get_file_store_init_method()"),
            Target(
                "vllm.v1.executor.multiproc_executor", uses="distributed_init_method = get_file_store_init_method()"
            ),
            Target("multiprocessing.shared_memory", "_make_filename", ()),
            Target("multiprocessing.synchronize", uses="_config['semprefix']"),
        ),
        "patches/plugin.py",
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
        "setup/config.py",
        applied=False,
    ),
    Patch(
        "executor",
        "runs the model in the core's process on a CPU, and applies the patches of the model runner there",
        "the model runs in a process of its own, which takes longer to start and is slower",
        (
            Target("vllm.v1.executor.uniproc_executor", "UniProcExecutor._init_executor", ("self",)),
            Target("vllm.platforms.cpu", uses='distributed_executor_backend == "uni"'),
        ),
        "setup/environment.py",
        applied=False,
        required_if_reproducible=True,
        cpu_only=True,
    ),
    Patch(
        "batch_invariant",
        "turns on vLLM's batch-invariant mode for GPUs, for reproducible=True",
        "answers on GPUs would depend on the batch",
        (
            Target("vllm.envs", "VLLM_BATCH_INVARIANT"),
            Target("vllm.model_executor.determinism.batch_invariant", "init_batch_invariance"),
            Target("vllm.v1.worker.gpu_worker", uses="    init_batch_invariance()"),
        ),
        "setup/reproducible.py",
        applied=False,
        required_if_reproducible=True,
        reproducible_only=True,
        gpu_only=True,
    ),
    Patch(
        "same_bits",
        "makes a row's numbers independent of the other rows of its step on a CPU, for reproducible=True",
        "answers on a CPU would depend on the batch",
        (
            Target("vllm.envs", "VLLM_CPU_ATTN_SPLIT_KV"),
            Target("vllm.model_executor.layers.utils", "dispatch_cpu_unquantized_gemm", ("layer", "remove_weight")),
            Target("vllm.model_executor.layers.utils", uses="return layer.cpu_linear(x, weight, bias)"),
            Target(
                "vllm.v1.attention.backends.cpu_attn",
                "CPUAttentionMetadataBuilder.build",
                ("self", "common_prefix_len", "common_attn_metadata", "fast_build"),
            ),
            Target("vllm.v1.attention.backends.cpu_attn", uses="enable_kv_split=envs.VLLM_CPU_ATTN_SPLIT_KV"),
            *(
                Target("vllm.v1.attention.backend", f"CommonAttentionMetadata.{name}")
                for name in ("num_reqs", "query_start_loc", "seq_lens", "block_table_tensor", "max_query_len")
            ),
            Target(
                "vllm._custom_ops",
                "cpu_attn_get_scheduler_metadata",
                ("num_reqs", "seq_lens", "query_start_loc", "sliding_window_size", "isa", "enable_kv_split"),
            ),
            Target(
                "vllm._custom_ops",
                "cpu_attn_reshape_and_cache",
                ("key", "value", "key_cache", "value_cache", "slot_mapping", "isa"),
            ),
            Target(
                "vllm._custom_ops",
                "cpu_attention_with_kv_cache",
                ("query", "output", "query_start_loc", "seq_lens", "block_table", "scheduler_metadata", "s_aux"),
            ),
        ),
        "patches/executor.py",
        required_if_reproducible=True,
        reproducible_only=True,
        cpu_only=True,
        needs="executor",
    ),
    Patch(
        "kernels",
        "lets vLLM use its own compiled kernels for RMS normalization, on a CPU with AMX",
        "a step takes up to a fifth longer on a CPU with AMX",
        (
            Target("vllm.config.kernel", "KernelConfig.ir_op_priority"),
            Target("vllm.ir.op", "IrOp.register_impl", ("self", "provider", "supported", "supports_args", "inplace")),
            Target("vllm.ir.ops.layernorm", "rms_norm", ("x", "weight", "epsilon", "variance_size")),
            Target(
                "vllm.ir.ops.layernorm",
                "fused_add_rms_norm",
                ("x", "x_residual", "weight", "epsilon", "variance_size"),
            ),
        ),
        "patches/executor.py",
        cpu_only=True,
        needs="executor",
    ),
    Patch(
        "generators",
        "lets vLLM undo the draws of a seeded row's random generator, which torch can do on GPUs only",
        "a seeded row with a prompt longer than a step would end the engine",
        (
            Target("vllm.v1.worker.gpu_model_runner", uses=".set_offset("),
            Target(
                "vllm.v1.sample.ops.topk_topp_sampler",
                "TopKTopPSampler.forward_cpu",
                ("self", "logits", "generators", "k", "p"),
            ),
        ),
        "patches/executor.py",
        required_if_reproducible=True,
        cpu_only=True,
        needs="executor",
    ),
    Patch(
        "masks",
        "applies token masks to 16-bit logits without widening them, on a CPU with vLLM's V1 model runner",
        "a step with constraints takes up to a quarter longer on a CPU",
        (
            # These two give no name, so that this module of 7,000 lines is not parsed.
            Target("vllm.v1.worker.gpu_model_runner", uses="import apply_grammar_bitmask\n"),
            Target("vllm.v1.worker.gpu_model_runner", uses=" apply_grammar_bitmask("),
            Target(
                "vllm.v1.structured_output.utils",
                "apply_grammar_bitmask",
                ("scheduler_output", "grammar_output", "input_batch", "logits"),
            ),
        ),
        "patches/executor.py",
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
        "patches/plugin.py",
        required_with_adapters=True,
        cpu_only=True,
    ),
)
"""In the order in which an engine needs them. A patch comes after the one that applies it."""
