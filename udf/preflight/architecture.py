"""Checks whether the installed vLLM serves a model: its architecture, its quantization, its way of being split."""

from __future__ import annotations

import ast
import difflib
import functools
import re
from collections.abc import Mapping

from daft_vllm.engine.setup.context import ropes
from daft_vllm.engine.setup.model_files.folder import folder_shapes
from daft_vllm.engine.setup.sources import module_source
from daft_vllm.errors import ModelError, suggest
from daft_vllm.model_configs import ModelConfig
from daft_vllm.model_configs.quantization import LEAST_CAPABILITY, NO_INT8, quantization_config, quantization_of
from daft_vllm.model_configs.splitting import heads_problem, split_advice, split_problem, tensor_parallel_size
from daft_vllm.udf.preflight.model import Model, check_packages
from daft_vllm.udf.preflight.report import Check

_WRITES = ("_TEXT_GENERATION_MODELS", "_MULTIMODAL_MODELS", "_TRANSFORMERS_SUPPORTED_MODELS")
"""vLLM's lists of architectures that write text. Its others make embeddings or classes, or only help to write."""
_ANY_TEXT = re.compile(r"ForCausalLM$|ForConditionalGeneration$")
_QUANTIZES_ITSELF = ("online", "experts_int8", "mxfp8", "mxfp4", "inc", "torchao", "humming")
"""Quantizations that vLLM applies to weights with 16 bits, besides those with a name such as fp8_per_block. For the
others the weights have to be quantized in their files (``QuantizationConfig.get_config_filenames``)."""
BFLOAT16 = (8, 0)
"""GPUs with at least this compute capability have bfloat16."""
_OLD_ROPES = {"su", "mrope"}
"""Kinds of RoPE to which vLLM gives other names (``patch_rope_parameters``)."""
_ALIKE = 0.3
"""Share of an architecture's kinds of layers that have to be among those of the weights. Of GPT-2's and Llama's a tenth
are, of two releases of the same model nearly all."""


def check_architecture(model: Model) -> str | Check:
    """Return the model's architecture, if the installed vLLM serves it and the packages that it needs are installed.

    Raises:
        ModelError: vLLM doesn't serve it, or it writes no text, or it isn't that of the weights.
        MissingPackageError: a package is missing.
    """
    check_packages(model)
    config = model.config
    listed = config.config.get("architectures")
    if not listed or not isinstance(listed, list | tuple) or not all(isinstance(name, str) for name in listed):
        raise ModelError(
            f"the config.json of {model.name} names no architecture: architectures is {listed!r:.60}, and has to be a "
            'list such as ["LlamaForCausalLM"].'
        )
    names = [str(name) for name in listed]
    check_writes(config)
    known, writing = vllm_architectures(), vllm_architectures(writing=True)
    if known is None or writing is None:
        return f"{names[0]}; not checked: no list of vLLM's architectures was found here"
    if not set(names) & known:
        if _ANY_TEXT.search(names[0]) is None:
            raise ModelError(f"{names[0]} {_writes_nothing(config.hub_name)}")
        near = difflib.get_close_matches(names[0], writing, n=1)
        hint = f" The most similar one that it serves is {near[0]}." if near else ""
        raise ModelError(f"the installed vLLM has no architecture {names[0]}.{hint} transformers may still run it.")
    if not set(names) & writing:
        raise ModelError(f"{names[0]} {_writes_nothing(config.hub_name)}")
    kind = _check_quantization(model)
    _check_rope(config)
    _check_weights_fit(model)
    return f"{names[0]}, {kind}" if kind else names[0]


def check_writes(config: ModelConfig) -> None:
    """Raise ``ModelError`` if a model makes embeddings and writes no text."""
    if config.task == "embed":
        raise ModelError(f"{config.hub_name} {_writes_nothing(config.hub_name)}")


def _writes_nothing(name: str) -> str:
    return (
        "makes embeddings or classes and writes no text, so prompt() can't use it: take a model that generates, "
        "such as qwen3-0.6b. 'daft-vllm models' lists more. For embeddings there is daft.functions.embed_text."
    )


@functools.cache
def vllm_architectures(*, writing: bool = False) -> frozenset[str] | None:
    """Return the architectures of the installed vLLM, read from its source text; None if they can't be found there.

    Args:
        writing: whether to return only those that write text.
    """
    source = module_source("vllm.model_executor.models.registry")
    if source is None:
        return None
    found: set[str] = set()
    for node in ast.parse(source).body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Dict):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            name = target.id if isinstance(target, ast.Name) else ""
            if name.endswith("_MODELS") and "PREVIOUSLY" not in name and (not writing or name in _WRITES):
                keys = (key.value for key in node.value.keys if isinstance(key, ast.Constant))
                found |= {str(key) for key in keys}
    return frozenset(found) or None


@functools.cache
def vllm_quantizations() -> frozenset[str] | None:
    """Return the quantizations of the installed vLLM, read from its source text; None if they can't be found there."""
    source = module_source("vllm.model_executor.layers.quantization")
    listed = re.search(r"^QuantizationMethods = Literal\[(.*?)^\]", source or "", re.MULTILINE | re.DOTALL)
    return frozenset(re.findall(r'^\s*"([^"]+)",', listed[1], re.MULTILINE)) if listed else None


def _check_quantization(model: Model) -> str:
    """Return the name of the model's quantization, empty if it has none. Raise ``ModelError`` if vLLM has none such."""
    known = vllm_quantizations()
    config, asked = model.config, model.args.get("quantization")
    saved = quantization_config(config.config) or {}
    published = str(saved.get("quant_method") or config.quantization or "").replace(
        "compressed_tensors", "compressed-tensors"
    )
    for name in (published, str(asked or "")):
        if name and name != "unknown" and known is not None and _vllm_name(name) not in known:
            raise ModelError(
                f"the installed vLLM has no quantization {name!r}.{suggest(name, known)} "
                f"It has {', '.join(sorted(known))}."
            )
    if asked and not published and not (str(asked) in _QUANTIZES_ITSELF or "_per_" in str(asked)):
        raise ModelError(
            f"quantization={asked!r} is for weights that are quantized in their files. Those of {config.hub_name} "
            'are not: leave it out, or let vLLM quantize them: engine_args={"quantization": "fp8_per_tensor"}.'
        )
    if asked and published and _family(str(asked)) != _family(published):
        raise ModelError(
            f"the files of {config.hub_name} are quantized with {published!r}, so vLLM refuses quantization={asked!r}: "
            "leave it out."
        )
    return published or str(asked or "")


def _check_rope(config: ModelConfig) -> None:
    """Raise ``ModelError`` if the installed vLLM doesn't know the kind of RoPE that the model has."""
    source = module_source("vllm.model_executor.layers.rotary_embedding") or ""
    known = set(re.findall(r'"(\w+)"', " ".join(re.findall(r"scaling_type (?:==|in) .*", source))))
    text = config.config.get("text_config") or config.config
    for rope in ropes(text.get("rope_scaling") or text.get("rope_parameters")):
        kind = rope.get("rope_type", rope.get("type", "default"))
        if known and kind not in known | _OLD_ROPES:
            raise ModelError(f"the installed vLLM has no RoPE of type {kind!r}. It has {', '.join(sorted(known))}.")


def _vllm_name(name: str) -> str:
    """Return vLLM's name for a quantization that libraries call something else."""
    return {"auto-round": "inc", "auto_round": "inc", "intel/auto-round": "inc"}.get(name.lower(), name.lower())


def _family(name: str) -> str:
    name = _vllm_name(name).removeprefix("auto_").removesuffix("_marlin").removeprefix("gpt_oss_")
    name = "modelopt" if name.startswith("modelopt") else name
    return "any" if name in ("humming", "moe_wna16", "online") else name


def _check_weights_fit(model: Model) -> None:
    """Raise ``ModelError`` if ``config.json`` describes another model than the one in the files of weights."""
    if model.folder is None or not model.reads_weights:
        return
    import transformers
    from transformers import AutoConfig

    from daft_vllm.model_configs.derived import empty_model

    found = folder_shapes(model.folder)
    try:
        config = AutoConfig.from_pretrained(model.folder, trust_remote_code=False)  # else it asks in the terminal
    except Exception:  # Python code of its own: what it builds is not known
        return
    name = (config.architectures or [""])[0]
    expected = getattr(getattr(transformers, name, None), "config_class", None)
    if expected is not None and getattr(expected, "model_type", config.model_type) != config.model_type:
        raise ModelError(
            f"its config.json contradicts itself: {name} is an architecture of {expected.model_type!r}, and "
            f"model_type is {config.model_type!r}. Take the config.json that belongs to the weights."
        )
    try:
        wanted = {name: tuple(weight.shape) for name, weight in empty_model(config).named_parameters()}
    except ModelError:
        return
    if not found or not wanted:
        return
    layers, stored = _layers(wanted), _layers(found)
    if len(layers & stored) < _ALIKE * len(layers):
        raise ModelError(
            f"its config.json describes {name}, with layers such as {', '.join(sorted(layers - stored)[:3])}; the "
            f"weights have {', '.join(sorted(stored - layers)[:3])}: take the config.json that belongs to the weights."
        )
    _check_number_of_layers(wanted, found)
    if model.config.quantization is not None:  # their shapes are others
        return
    for tensor, shape in wanted.items():
        if len(shape) == 2 and len(found.get(tensor, ())) == 2 and found[tensor] != shape:
            raise ModelError(
                f"its config.json describes another model than its weights: {tensor} is {_sides(found[tensor])} there, "
                f"and {_sides(shape)} by config.json. Take the config.json that belongs to the weights."
            )


def _check_number_of_layers(wanted: Mapping[str, object], found: Mapping[str, object]) -> None:
    """Raise ``ModelError`` if the weights have fewer layers than ``config.json`` says. More may be for another use."""
    numbers = [{int(n) for n in re.findall(r"\.layers\.(\d+)\.", " ".join(names))} for names in (wanted, found)]
    by_config, stored = numbers
    if stored and (lacking := by_config - stored) and set(wanted) & set(found):
        raise ModelError(
            f"its config.json describes another model than its weights: they have no layer {min(lacking)}, and "
            f"config.json says {len(by_config)} layers. Take the config.json that belongs to the weights."
        )


def _layers(tensors: Mapping[str, object]) -> set[str]:
    """Return the kinds of layers that tensors belong to: ``q_proj`` for ``model.layers.0.self_attn.q_proj.weight``."""
    parts = (name.split(".") for name in tensors)
    return {part[-2] if len(part) > 1 else part[-1] for part in parts} - {str(number) for number in range(1000)}


def _sides(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def check_split(model: Model, gpus: float) -> None:
    """Raise ``ModelError`` if vLLM can't split the model over the GPUs of an engine. The message says what it can."""
    size = tensor_parallel_size(gpus, model.args)
    problem = heads_problem(model.config, size) or split_problem(model.config, size, model.args)
    if problem is not None:
        advice = split_advice(model.config, size, model.args)
        raise ModelError(f"vLLM can't split {model.name} over {size} GPUs: {problem}. {advice}")


def check_card_type(model: Model, name: str, capability: tuple[int, ...] | None) -> None:
    """Raise ``ModelError`` if a card lacks the type of numbers that the model needs, or vLLM's kernels for them.

    Args:
        model: the model.
        name: the card's name.
        capability: its compute capability. None: unknown, and nothing is checked.
    """
    if capability is None:
        return
    quantization = quantization_of(model.config, model.args)
    if quantization is not None and capability < (least := LEAST_CAPABILITY.get(quantization.method, (0, 0))):
        raise ModelError(
            f"a {name} has compute capability {'.'.join(map(str, capability))}, and vLLM's kernels for "
            f"{quantization.method} weights need {least[0]}.{least[1]}: use another card, or a model that is quantized "
            "otherwise."
        )
    if quantization is not None and quantization.activations == "int8" and capability >= NO_INT8:
        raise ModelError(
            f"a {name} has compute capability {'.'.join(map(str, capability))}, and vLLM multiplies 8-bit integers up "
            f"to {NO_INT8[0] - 1}.x only: use a model with FP8 weights, or another card."
        )
    if capability >= BFLOAT16:
        return
    dtype = str(model.args.get("dtype", "auto"))
    if dtype == "bfloat16" or (dtype == "auto" and "float16" not in model.config.dtypes):
        raise ModelError(f"a {name} has no bfloat16, which {model.name} needs: use dtype float32, or another card.")
