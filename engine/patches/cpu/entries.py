"""The entries of changes that are for CPUs alone, and are in this folder."""

from __future__ import annotations

from daft_vllm.engine.patches.targets import Patch, Target

CPU_PATCHES: tuple[Patch, ...] = (
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
"""They come after all others, see ``PATCHES``."""
