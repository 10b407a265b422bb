"""Which models ``reproducible=True`` can be had with: by what vLLM 0.32's code does in its batch-invariant mode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from daft_vllm.engine.setup.reproducible import check_capability, check_machine
from daft_vllm.errors import DaftVLLMError, ModelError
from daft_vllm.model_configs import ModelConfig
from daft_vllm.model_configs.cards import Card
from daft_vllm.model_configs.quantization import quantization_of
from daft_vllm.model_configs.splitting import tensor_parallel_size
from daft_vllm.udf.preflight.model import Model
from daft_vllm.wording import brief

_QUANTIZATIONS = ("fp8", "fp8_per_tensor", "fp8_per_block", "fp8_per_channel", "awq", "auto_awq")
"""Quantizations for which vLLM's batch-invariant mode has kernels (``fp8``, ``online/fp8`` and ``auto_awq`` in
``vllm/model_executor/layers/quantization``). For others it raises no error, and uses kernels such as Marlin's, whose
sums depend on the number of rows."""
OTHERWISE = "Use another model, or leave reproducible out."
"""What to do about it, for messages."""
_TRIED_ON_CPU = (
    *("exaone4", "gemma2", "gemma3_text", "glm4", "granite", "hunyuan_v1_dense", "llama", "mistral", "olmo3", "phi3"),
    *("qwen2", "qwen3", "seed_oss", "smollm3"),
)
"""Kinds of models, as ``config.json`` names them, whose log-probabilities had the same bits alone and in a batch, on a
CPU. Others may use matrix products that ``engine/patches/cpu/same_bits.py`` doesn't know."""
_STATES = ("linear_attention", "mamba", "recurrent", "conv")
"""Kinds of layers that keep a state instead of keys and values. None of vLLM's backends for them is batch-invariant."""
_STATE_SIZES = ("linear_num_value_heads", "mamba_n_heads", "mamba_d_state", "ssm_state_size")
_EXPERTS = ("num_experts", "moe_num_experts", "num_local_experts", "n_routed_experts")


def check_reproducible(model: Model, gpus: float, card: Card | None = None) -> None:
    """Raise an error if ``reproducible=True`` can't be had with a model, on a card if there is one.

    Raises:
        ModelError: the model's answers depend on the batch.
        DeviceError: the card is too old for vLLM's batch-invariant mode, or the processor is no x86-64.
    """
    check_machine(gpus)
    try:
        problem = reproducible_problem(model.config, model.args, gpus)
    except DaftVLLMError:
        raise
    except Exception as e:  # a model that only vLLM can read
        problem = f"its kind isn't known here ({brief(e)})"
    if problem is not None:
        raise ModelError(f"reproducible=True can't be had with {model.name}: {problem}. {OTHERWISE}")
    if gpus and card is not None and card.capability is not None:
        check_capability(card.full_name, (card.capability[0], card.capability[1]))


def reproducible_problem(
    config: ModelConfig, engine_args: Mapping[str, Any], gpus: float, *, complete: bool = True
) -> str | None:
    """Return why ``reproducible=True`` can't be had with a model. None: it can.

    Args:
        config: the model.
        engine_args: arguments of vLLM's engine.
        gpus: the engine's GPUs. 0: it runs on the CPU.
        complete: False looks only at what the config itself says, and imports nothing. True also knows what its class
            adds, and imports transformers.
    """
    text: Mapping[str, Any] = config.config.get("text_config") or config.config
    states, experts = any(map(text.get, _STATE_SIZES)), any(map(text.get, _EXPERTS))
    if complete:
        states = states or bool(config.architecture.state_bytes)
        experts = experts or bool(config.architecture.experts)
    if states or any(state in str(kind) for kind in text.get("layer_types") or () for state in _STATES):
        return "the kernels for its layers of linear attention or Mamba depend on the number of rows"
    quantization = quantization_of(config, engine_args)
    method = quantization.method if quantization is not None else None
    if not gpus:
        return _cpu_problem(config, text, method, experts=experts)
    if method is not None and method not in _QUANTIZATIONS:
        return f"vLLM's batch-invariant mode has kernels for FP8 and AWQ weights, and none for {method}"
    if method in ("awq", "auto_awq") and experts:
        return "vLLM's batch-invariant mode has no kernels for experts with AWQ weights"
    if text.get("index_topk"):
        return "vLLM's batch-invariant mode has no kernels for sparse attention"
    width = text.get("hidden_size") or (config.architecture.hidden_size if complete else 0)
    if tensor_parallel_size(gpus, engine_args) > 1 and width % 8:
        return (
            f"its width, {width}, is no multiple of 8, and then the order in which vLLM adds the numbers of several "
            "GPUs depends on the number of rows"
        )
    return None


def _cpu_problem(config: ModelConfig, text: Mapping[str, Any], method: str | None, *, experts: bool) -> str | None:
    if method is not None:
        return f"on a CPU the kernels for {method} weights depend on the number of rows"
    if experts:
        return "on a CPU the kernels for experts depend on the number of rows"
    if text.get("kv_lora_rank"):
        return "on a CPU the kernels for its kind of attention (MLA) depend on the number of rows"
    kind = config.config.get("model_type")
    if kind not in _TRIED_ON_CPU:
        return f"on a CPU it was tried with models of the kinds {', '.join(_TRIED_ON_CPU)} only, and this is {kind}"
    return None
