"""How many bytes a quantized weight takes, by what ``config.json`` or vLLM's arguments say about the quantization."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from daft_vllm.model_configs.registry import ModelConfig

_BITS = ("bits", "num_bits", "w_bit", "wbits", "nbits", "weight_bits")
"""What libraries call the bits of a weight: GPTQ, AWQ and AutoRound; compressed-tensors; AWQ's first release; HQQ."""
_NAMES = ("quant_algo", "format", "weight_format", "forward_dtype", "fmt", "dtype", "quant_type", "_type", "type")
"""Entries whose text names a type of numbers: NVIDIA ModelOpt, compressed-tensors, FP-Quant, FP8, Quark, torchao."""
_ACTIVATIONS = ("input_activations", "output_activations", "input_tensors", "output_tensors", "bias", "activation")
_KINDS = {"awq": 4, "gptq": 4, "bitsandbytes": 4, "inc": 4, "auto-round": 4, "auto_awq": 4, "auto_gptq": 4}
"""Bits of libraries that nearly always use these, where nothing says how many."""
_MULTIPLIES_FP8 = ("fp8", "fbgemm_fp8", "deepseek_v4_fp8", "mxfp8")
"""Beginnings of the names of quantizations that multiply in FP8 where the card can."""
_GPT_OSS_MXFP4 = 0.572
"""4 bits, a scale of 8 bits for 32 weights, and vLLM's padding of gpt-oss's 2,880 columns. vLLM logs 13.64 GiB for the
20b, and for the 120b 64.38 with Triton's kernels and 65.97 with Marlin's (vllm-project/vllm issues 33155 and 23278)."""
_MXFP4 = 0.5 + 1 / 32
_ONLY_EXPERTS = ("int8_per_channel_weight_only", "nvfp4_per_token", "experts_int8")
"""vLLM's names for quantizations that leave all layers but the experts as they are (``vllm.config.quantization``)."""
_TYPES = re.compile(
    r"(?:nvfp|mxfp|mxint|float|uint|int|fp|nf|bf|w)(\d{1,2})(?!\d)|(?<![a-z0-9])e(\d)m(\d)|_(\d)bit|(?<!\d)(\d)-?bit",
    re.I,
)

LEAST_CAPABILITY: Mapping[str, tuple[int, int]] = {
    "auto_awq": (7, 5),
    "awq": (7, 5),
    "awq_marlin": (7, 5),
    "compressed-tensors": (7, 0),
    "deepseek_v4_fp8": (7, 5),
    "experts_int8": (8, 0),
    "fbgemm_fp8": (8, 0),
    "fp8": (7, 5),
    "fp8_per_block": (7, 5),
    "fp8_per_channel": (7, 5),
    "fp8_per_tensor": (7, 5),
    "fp_quant": (10, 0),
    "gpt_oss_mxfp4": (8, 0),
    "humming": (7, 5),
    "int8_per_channel_weight_only": (7, 5),
    "modelopt": (8, 0),
    "modelopt_fp4": (7, 5),
    "modelopt_mixed": (7, 5),
    "modelopt_mxfp8": (8, 0),
    "moe_wna16": (7, 0),
    "mxfp4": (8, 0),
    "mxfp8": (8, 0),
    "nvfp4_per_token": (7, 5),
    "online": (7, 5),
    "quark": (7, 0),
    "torchao": (7, 5),
}
"""The least compute capability of a card for a quantization, by vLLM's name of it: ``get_min_capability`` of vLLM 0.32.
Those that every card has are left out."""


FP8 = (8, 9)
"""The lowest compute capability with which vLLM multiplies 8-bit floating point matrices."""
_FP4 = (10, 0)
"""The lowest one with which it multiplies 4-bit floating point matrices."""
_INT8, NO_INT8 = (7, 5), (10, 0)
"""vLLM multiplies 8-bit integers from the first to below the second (vllm-project/vllm
docs/features/quantization/llm_compressor/int8_w8a8.md: "INT8 is not supported on compute capability >= 10.0")."""


def multiplies(activations: str | None, capability: tuple[int, ...]) -> bool:
    """Return whether a card multiplies in a type, one of ``Quantization.activations``. False for None: it expands."""
    if activations == "int8":
        return _INT8 <= capability < NO_INT8
    return activations is not None and capability >= {"fp8": FP8, "fp4": _FP4}[activations]


@dataclass(frozen=True)
class Quantization:
    """How a model's weights are quantized.

    Args:
        method: the name of the kind, such as ``"compressed-tensors"``.
        weight_bytes: bytes of a quantized weight, with its share of scales. None: nothing says how many.
        expert_bytes: bytes of an expert's weight, where it has fewer bits than the others. None: it has as many.
        group: how many weights of a row share a scale. None: all of them, or nothing says so.
        block: rows and columns of a block of weights that share a scale. None: there are no blocks.
        only_experts: whether all other layers stay in 16 bits.
        activations: the type in which weights and activations are multiplied: ``"int8"``, ``"fp8"`` or ``"fp4"``. None:
            in 16 bits, to which the weights are expanded.
        from_files: whether the weights are quantized in their files. False: vLLM does it as it loads them.
    """

    method: str
    weight_bytes: float | None
    group: int | None = None
    block: tuple[int, int] | None = None
    only_experts: bool = False
    activations: str | None = None
    from_files: bool = True
    expert_bytes: float | None = None


def quantization_of(config: ModelConfig, engine_args: Mapping[str, Any] | None = None) -> Quantization | None:
    """Return how a model's weights are quantized, in their files or by vLLM's arguments. None: they are not.

    Never raises anything: whatever is not understood is None in the result.
    """
    args = engine_args or {}
    saved = quantization_config(config.config)
    if saved is not None:
        found = read_quantization(saved, config.quantization)
        # DeepSeek-V4: vLLM's deepseek_v4/quant_config.py, experts in mxfp4
        return replace(found, expert_bytes=_MXFP4) if config.config.get("expert_dtype") == "fp4" else found
    if config.quantization is not None:
        return read_quantization({}, config.quantization)
    asked = args.get("quantization")
    more = args.get("quantization_config")
    if asked is None and more is None:
        return None
    found = read_quantization(more if isinstance(more, Mapping) else {}, str(asked or "online"))
    return replace(found, group=None, block=None, from_files=False)


def quantization_config(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what a ``config.json`` says about quantization, wherever it says so. None: nothing."""
    for place in (config, config.get("text_config")):
        if isinstance(place, Mapping):
            for name in ("quantization_config", "compression_config"):
                if isinstance(place.get(name), Mapping):
                    return place[name]  # type: ignore[no-any-return]
    return None


def read_quantization(saved: Mapping[str, Any], method: str | None = None) -> Quantization:
    """Read the ``quantization_config`` of a ``config.json``.

    Args:
        saved: the config; it may be empty.
        method: the name of the kind, where the config has none.
    """
    name = str(saved.get("quant_method") or method or saved.get("quant_algo") or "unknown").lower()
    outer, *inner = list(_parts(saved))
    bits = _bits(outer) or max((found for part in inner if (found := _bits(part))), default=None)
    bits = bits or _bits_of_name(name) or next((n for kind, n in _KINDS.items() if name.startswith(kind)), None)
    words = f"{name} {saved}".lower()
    group = next(filter(None, map(_group, (outer, *inner))), None)
    block = next(filter(None, map(_block, (outer, *inner))), None)
    if bits is None:
        size = None
    elif name == "mxfp4" and not saved:
        size = _GPT_OSS_MXFP4
    elif block is not None:
        size = bits / 8 + 4 / (block[0] * block[1])
    elif "mxfp" in words:
        size = bits / 8 + 1 / 32
    elif "nvfp" in words:
        size = bits / 8 + 1 / 16
    elif bits > 4:
        size = bits / 8 + (2 / group if group else 0)
    else:  # a scale of 16 bits and a zero point for each group
        size = bits / 8 + (2 + bits / 8) / (group or 128)
    only_experts = name in _ONLY_EXPERTS or (name == "mxfp4" and not saved)
    return Quantization(name, size, group, block, only_experts=only_experts, activations=_activations(saved, name))


def _parts(saved: Any, depth: int = 0) -> Iterator[Mapping[str, Any]]:
    """Yield the parts of a config that are about weights, from the outermost to the innermost."""
    if not isinstance(saved, Mapping) or depth > 6:
        return
    yield saved
    for name, value in saved.items():
        if name not in _ACTIVATIONS and name != "kv_cache_scheme":
            for one in value if isinstance(value, list) else [value]:
                yield from _parts(one, depth + 1)


def _activations(saved: Mapping[str, Any], name: str) -> str | None:
    """Return the type in which weights and activations are multiplied. None: in 16 bits."""
    text = f"{name} {saved}".lower()
    if "nvfp4" in text or "modelopt_fp4" in text:
        return "fp4"
    if name.startswith(_MULTIPLIES_FP8) or ("quant_algo" in saved and "fp8" in str(saved["quant_algo"]).lower()):
        return "fp8"
    for part in _parts(saved):
        for said in filter(None, map(part.get, _ACTIVATIONS)):
            if not isinstance(said, Mapping):
                continue
            if said.get("num_bits") == 8 or "8" in str(said.get("dtype")):  # compressed-tensors, Quark
                return "int8" if "int" in f"{said.get('type')} {said.get('dtype')}" else "fp8"
    return None


def _bits(part: Mapping[str, Any]) -> int | None:
    for name in _BITS:
        value = part.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 32:
            return value
    for bits in (4, 8):
        if part.get(f"load_in_{bits}bit") is True:
            return bits
    for name in _NAMES:
        value = part.get(name)
        if isinstance(value, str) and (found := _bits_of_name(value)):
            return found
    return None


def _bits_of_name(name: str) -> int | None:
    """Return the bits in a name such as ``"NVFP4"``, ``"float8_e4m3fn"``, ``"W4A16_AWQ"`` or ``"e4m3"``."""
    found = _TYPES.search(name)
    if found is None:
        return None
    plain, exponent, mantissa, *others = found.groups()
    bits = 1 + int(exponent) + int(mantissa) if exponent else int(plain or others[0] or others[1])
    return bits if 0 < bits <= 32 else None


def _group(part: Mapping[str, Any]) -> int | None:
    value = part.get("group_size", part.get("q_group_size"))
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _block(part: Mapping[str, Any]) -> tuple[int, int] | None:
    value = part.get("weight_block_size", part.get("block_structure"))
    value = value.split("x") if isinstance(value, str) else value
    if not isinstance(value, (list, tuple)) or len(value) != 2 or not all(str(one).isdigit() for one in value):
        return None
    rows, columns = (int(one) for one in value)
    return (rows, columns) if rows and columns else None
