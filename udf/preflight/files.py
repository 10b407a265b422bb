"""Checks of a model's files: whether they are complete, in a folder or on the hub, and fit onto the disk."""

from __future__ import annotations

import difflib
import os
import re
import shutil
from pathlib import Path
from urllib.parse import urlsplit

from daft_vllm.engine.setup.model_files.folder import (
    check_folder_complete,
    check_model_folder,
    has_hf_tokenizer,
    has_mistral_tokenizer,
)
from daft_vllm.engine.setup.model_files.pickles import PICKLES, check_model_pickles, reads_pickles
from daft_vllm.engine.setup.preflight import load_tokenizer
from daft_vllm.errors import DaftVLLMError, ModelError
from daft_vllm.model_configs import ModelConfig, config_of, known_models
from daft_vllm.model_configs.cards import GIB
from daft_vllm.model_configs.memory import weights_of
from daft_vllm.udf.preflight.model import Model
from daft_vllm.udf.preflight.report import Check
from daft_vllm.wording import brief

HUB_SECONDS = 5.0
"""How long the hub may take to answer."""
SPARE = 0.1
"""A disk with less room than the model's files and this share of them gets a warning: other things write to it too."""
_UNREACHABLE = {"TransportError", "ConnectionError", "TimeoutError", "Timeout"}
"""Classes of errors without an answer: the hub's library has changed the library that it asks with before."""
_QUANTIZED = re.compile(
    r"[-_.](awq|gptq|fp8|fp4|nvfp4|mxfp4|int[48]|w\dak?\d+|\d-?bit|bnb|gguf|mlx|exl2|quantized|autoround|q\d)\b", re.I
)
"""Endings of the names of repositories with quantized weights of another one's model."""


def check_files(model: Model, *, elsewhere: bool = False) -> str | Check:
    """Return where the model's files are: complete in a folder, in a package, or on the hub.

    Args:
        model: the model.
        elsewhere: it will run on another machine: that this one doesn't reach the hub is a warning.

    Raises:
        ModelError: a file is missing or cut off, the hub doesn't have the model or can't be asked, its licence has to
            be accepted, or its weights are pickles that the engine's arguments don't allow.
    """
    check_model_folder(model.name)
    known = config_of(model.name)
    folder = model.folder
    if folder is not None:
        try:
            check_folder_complete(folder, weights=model.reads_weights, tokenizer="tokenizer" not in model.args)
        except ModelError:
            if Path(model.name).expanduser().is_dir():
                raise
        else:
            if model.reads_weights:
                check_model_pickles(folder, model.args)
            return f"{folder}, complete"
    if known is not None and known.package is not None:
        known.package.folder()
        return f"carried by the package {known.package.distribution}, converted on first use"
    if model.name.startswith((".", "/", "~")) or model.name.count("/") > 1:
        raise ModelError(f"there is no folder {model.name!r}.")
    on_hub = known.hub_name if known is not None else model.name
    return _on_hub(on_hub, known, elsewhere=elsewhere, pickles=reads_pickles(model.args))


def check_tokenizer(model: Model) -> str | Check:
    """Return which tokenizer the model has.

    Raises:
        ModelError: it is on this machine, and can't be loaded.
    """
    place = Path(model.tokenizer_of)
    if not place.is_dir():
        if model.tokenizer is None:
            return Check("tokenizer", "skipped", "it is not on this machine")
        return type(model.tokenizer).__name__
    try:
        tokenizer = load_tokenizer(str(place))
    except Exception as e:
        if "trust_remote_code" in str(e):
            if model.args.get("trust_remote_code") is True:
                return Check("tokenizer", "skipped", "it is Python code of the model's own, which only the load runs")
            raise ModelError(
                f"the tokenizer in {str(place)!r} is Python code of the model's own. If you trust it, pass "
                'engine_args={"trust_remote_code": True}.'
            ) from e
        raise ModelError(
            f"the tokenizer in {str(place)!r} can't be loaded ({brief(e)}): download its files again, "
            'or pass engine_args={"tokenizer": "owner/name"}.'
        ) from e
    if not has_mistral_tokenizer(place):
        return type(tokenizer).__name__
    kind = "tokenizer.json; tekken.json beside it is not used" if has_hf_tokenizer(place) else "tekken.json, converted"
    return f"{type(tokenizer).__name__}, from {kind}"


def suggest_model(name: str) -> str:
    """Return ``" Did you mean 'x'?"`` for a mistyped name, and what else there is for a quantized model.

    A name with an ending such as -AWQ is that of other weights: nobody who writes it has mistyped the name without it.
    """
    names = {known.lower(): known for config in known_models().values() for known in (config.hub_name, config.name)}
    quantized = _QUANTIZED.search(name)
    if quantized is not None:
        whole = config_of(name[: quantized.start()])
        if whole is None:
            return ""
        return (
            f" daft-vllm describes {whole.name}, the same model without {quantized[1].upper()}. vLLM can quantize it "
            f'as it loads it: model={whole.name!r}, engine_args={{"quantization": "fp8_per_tensor"}}.'
        )
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.8)
    return f" Did you mean {names[near[0]]!r}?" if near and near[0] != name.lower() else ""


def _on_hub(name: str, known: ModelConfig | None, *, elsewhere: bool, pickles: bool) -> str | Check:
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.constants import ENDPOINT
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    gated = f"{name} is gated: accept its licence on https://huggingface.co/{name}, and set HF_TOKEN."
    if known is not None and known.gated and get_token() is None:
        raise ModelError(gated)
    hint = suggest_model(name)

    def unreachable(why: str) -> Check:
        """Return a warning for a known model that another machine may reach, and raise ``ModelError`` otherwise."""
        if elsewhere and known is not None:
            return Check("model", "warning", f"this machine: {why}")
        raise ModelError(f"{why}{hint}")

    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return unreachable(
            f"{name} is not in the hub's cache, and HF_HUB_OFFLINE is set: unset it, or run 'hf download {name}' where "
            "the hub can be reached."
        )
    try:
        info = HfApi().model_info(name, timeout=HUB_SECONDS)
    except GatedRepoError as e:
        raise ModelError(
            f"{name} is gated, and this token has no access: accept its licence on https://huggingface.co/{name}."
        ) from e
    except RepositoryNotFoundError as e:
        raise ModelError(f"the hub has no model {name!r}.{hint}") from e
    except Exception as e:
        if _UNREACHABLE & {one.__name__ for one in type(e).__mro__}:
            host = urlsplit(ENDPOINT).netloc
            return unreachable(f"{name!r} is not on this machine, and {host} can't be reached.")
        raise ModelError(f"{name!r} is not on this machine, and the hub can't be asked: {brief(e)}.{hint}") from e
    if info.gated and get_token() is None:
        raise ModelError(gated)
    files = [one.rfilename for one in info.siblings or ()]
    if files and not any(file.endswith((".safetensors", ".bin", ".pt")) for file in files):
        what = "only GGUF files" if any(file.endswith(".gguf") for file in files) else "no weights"
        raise ModelError(f"{name} has {what} on the hub, and vLLM reads safetensors: take the model it was made from.")
    weights = [file for file in files if file.endswith((".safetensors", *PICKLES))]
    if weights and not pickles and not any(file.endswith(".safetensors") for file in weights):
        raise ModelError(
            f"the weights of {name} on the hub are pickles ({weights[0]}), in which Python code can hide: take a model "
            'with safetensors. If you trust these files, pass engine_args={"load_format": "hf"}.'
        )
    if "adapter_config.json" in files and "config.json" not in files:
        raise ModelError(
            f'{name} is a LoRA adapter, not a model: pass its base model, and adapters={{"name": {name!r}}}, '
            'adapter="name".'
        )
    return f"on the hub, {info.downloads or 0} downloads a month; not on this machine yet"


def check_disk(model: Model, *, elsewhere: bool = False) -> str | Check:
    """Return how much room the disk has for the model's files.

    Args:
        model: the model.
        elsewhere: it will run on another machine: that this one has too little room is a warning.

    Raises:
        ModelError: the files take more room than there is.
    """
    if not model.reads_weights or model.file_bytes is not None:
        return "nothing to download"
    place = Path(os.environ.get("HF_HUB_CACHE") or os.environ.get("HF_HOME") or "~/.cache").expanduser()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    try:
        needs = weights_of(model.config)
    except DaftVLLMError:
        return f"{free / GIB:.0f} GiB free"
    where = "this machine: " if elsewhere else ""
    if needs * (1 + SPARE) > free:
        little = (
            f"the model's files take {needs / GIB:.1f} GiB, and {place} has {free / GIB:.1f}: set HF_HOME elsewhere."
        )
        if needs > free and not elsewhere:
            raise ModelError(little)
        return Check("disk", "warning", f"{where}{little}")
    return f"{where}{free / GIB:.0f} GiB free for {needs / GIB:.0f} GiB of files"
