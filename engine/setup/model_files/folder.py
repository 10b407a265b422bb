"""What is wrong with a model's folder: its kind, missing files, files that are cut off. Reads headers, no weights."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from daft_vllm.engine.setup.context import config_problem
from daft_vllm.errors import ModelError
from daft_vllm.secrets import has_secrets
from daft_vllm.wording import shown

_WEIGHTS = ("*.safetensors", "*.bin", "*.pt")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json", "vocab.txt", "spiece.model")
_TOKENIZERS_BY_ENDING = ("*.tiktoken", "tokenizer.model.*", "tokenization_*.py")
_OTHER_WEIGHTS = {".onnx": "ONNX", ".h5": "TensorFlow", ".msgpack": "Flax", ".pth": "PyTorch's .pth", ".nemo": "NeMo"}
_GIT_LFS = b"version https://git-lfs"
FROM_FILES = ("auto", "hf", "safetensors", "fastsafetensors", "instanttensor", "mistral", "pt")
"""vLLM's ``load_format`` that read the folder's usual files."""
_LONGEST_HEADER = 100_000_000
"""Bytes of the longest header that the safetensors library reads."""


def check_model_folder(model: str) -> None:
    """Raise ``ModelError`` if ``model`` is a path, and no model in Hugging Face format is there.

    Names on a hub are not checked.
    """
    if problem := _name_problem(model):
        raise ModelError(problem)
    path = Path(model).expanduser()
    if path.is_file() or model.lower().endswith(".gguf"):
        raise ModelError(_no_folder(path, model))
    looks_like_path = path.is_absolute() or model.startswith((".", "~")) or path.is_dir() or model.count("/") > 1
    if not looks_like_path:
        return
    if not path.is_dir():
        raise ModelError(
            f"there is no model folder {shown(model)}. Give the folder with the model's config.json, "
            "or a name on the Hugging Face hub such as 'HuggingFaceTB/SmolLM2-135M-Instruct'."
        )
    if (path / "adapter_config.json").is_file() and not (path / "config.json").is_file():
        raise ModelError(
            f"the folder {model!r} is a LoRA adapter, not a model: pass its base model, model={_base(path)!r}, and "
            f'adapters={{"name": {model!r}}}, adapter="name".'
        )
    if not (path / "config.json").is_file():
        raise ModelError(f"the folder {model!r} has no config.json: {_instead(path)}")


_ON_HUB = re.compile(
    r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/([^/\s]+/[^/\s?#]+).*|hf:/*([^/\s]+/[^/\s@]+).*"
)
_REVISION = re.compile(r"([\w.-]+/[\w.-]+)@([\w./-]+)")
_OTHER_PLACE = re.compile(r"[a-z][a-z0-9+.-]+://.*", re.IGNORECASE)
_LONGEST_NAME = 200


def _name_problem(model: str) -> str | None:
    """Return what to write in place of a name that is neither a folder nor one of the hub's."""
    if model != model.strip() or not model.strip():
        return (
            f"model={model!r} has a blank at an end: write model={model.strip()!r}."
            if model.strip()
            else ("model is empty: pass a name such as 'qwen3-0.6b', or a folder. 'daft-vllm models' lists the names.")
        )
    if len(model) > _LONGEST_NAME and not model.startswith(("/", ".", "~")):
        return f"model={model[:40]!r}... has {len(model)} characters, more than any name on the hub."
    if has_secrets(model):
        return f"model={shown(model)} has a token or a password in it: write the name alone, and set HF_TOKEN."
    if found := _ON_HUB.fullmatch(model):
        return f"model={shown(model)} is an address: write the name alone, model={found[1] or found[2]!r}."
    if found := _REVISION.fullmatch(model):
        args = f'engine_args={{"revision": "{found[2]}"}}'
        return f"model={model!r} names a revision: write model={found[1]!r}, {args}."
    if re.fullmatch(r"[\w.-]+/[\w.-]+/", model) and not Path(model).is_dir():
        return f"there is no folder {model!r}. For the model on the hub write model={model.rstrip('/')!r}."
    if model.startswith("file://"):
        return f"model is a folder without file://: write model={model.removeprefix('file://')!r}."
    if _OTHER_PLACE.fullmatch(model):
        return f"model={shown(model)} is an address: copy the model's files into a folder, and pass the folder."
    return None


def _no_folder(path: Path, model: str) -> str:
    if model.lower().endswith(".gguf"):
        return f"{model!r} is a GGUF file. {_GGUF}"
    if path.name == "config.json" or path.suffix in (".safetensors", ".bin", ".pt"):
        return f"model is a folder, and {model!r} is a file: pass its folder, model={str(path.parent)!r}."
    return f"model is a folder, and {model!r} is a file: pass the folder with the model's config.json."


_GGUF = (
    "vLLM reads safetensors: pass the name of the model that the file was made from (the card of its repository on the "
    "hub names it), or one of 'daft-vllm models'."
)


def _base(adapter: Path) -> str:
    try:
        config = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
        return str(config.get("base_model_name_or_path") or "owner/base-model")
    except (OSError, ValueError, AttributeError):
        return "owner/base-model"


def _instead(folder: Path) -> str:
    """Return what a folder without ``config.json`` has instead, and what to do."""
    if any(folder.glob("*.gguf")):
        return f"it has a GGUF file. {_GGUF}"
    if (folder / "params.json").is_file():
        return "it is in Mistral's own format. Download the repository's other files, too: config.json belongs to them."
    if (folder / "model_index.json").is_file():
        return "it is a model of the diffusers library, which makes images. vLLM's models write text."
    if any(path.is_symlink() and not path.exists() for path in folder.iterdir()):
        return "its files are links to files that aren't there. Download the model again."
    below = sorted(path.parent for path in folder.glob("*/config.json"))
    below += sorted(path.parent for path in folder.glob("snapshots/*/config.json"))
    if below:
        return f"the model is in {str(below[-1])!r}: pass that folder."
    return "it is not a model in Hugging Face format."


def missing_weights(folder: Path) -> list[str]:
    """Return the files of weights that are missing in a folder."""
    index = _index(folder)
    if index is not None:
        return sorted(name for name in set(index.values()) if not (folder / name).exists())
    return [] if weight_files(folder) else ["every file of weights"]


def _index(folder: Path) -> dict[str, str] | None:
    """Return the file of each tensor by the folder's index. None: it has no index that can be read."""
    for path in sorted(folder.glob("*.index.json"), key=lambda path: "safetensors" not in path.name):
        if path.name.startswith("consolidated"):
            continue
        try:
            found = json.loads(path.read_text(encoding="utf-8")).get("weight_map", {})
        except (OSError, ValueError, AttributeError):
            continue
        if isinstance(found, dict):
            return {str(tensor): str(name) for tensor, name in found.items()}
    return None


def weight_files(folder: Path) -> list[Path]:
    """Return a folder's files of weights, all of one kind, even if it has several kinds."""
    for kind in _WEIGHTS:
        found = sorted(folder.glob(kind))
        if found:  # Mistral's repositories have all weights a second time, in their own format
            return [path for path in found if not path.name.startswith("consolidated")] or found
    return []


def weights_problem(folder: Path) -> str | None:
    """Return what is wrong with a folder's weights: a file is missing, empty or cut off. None: nothing is.

    The header of a safetensors file says how long the file is. Weights are not read.
    """
    missing = missing_weights(folder)
    if missing:
        for ending, what in _OTHER_WEIGHTS.items():
            if not weight_files(folder) and any(folder.glob(f"**/*{ending}")):
                return f"it has weights for {what} only, and vLLM reads safetensors: take the model with these."
        if not weight_files(folder) and any(folder.glob("*.gguf")):
            return f"it has its weights in a GGUF file only. {_GGUF}"
        return f"{missing[0]} is missing."
    index = _index(folder) or {}
    for path in sorted({*weight_files(folder), *(folder / name for name in index.values())}):
        problem = _file_problem(path)
        if problem is None and path.suffix == ".safetensors" and index:
            tensors = tensor_shapes(path)
            lost = next((name for name, file in index.items() if file == path.name and name not in tensors), None)
            problem = f"lacks {lost}, which the index says is in it" if lost is not None else None
        if problem is not None:
            return f"{path.name} {problem}. Download it again."
    return None


def _file_problem(path: Path) -> str | None:
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(len(_GIT_LFS))
        if start == _GIT_LFS:
            return "is a pointer of Git LFS, not the file itself: run 'git lfs pull'"
        if not size:
            return "is empty"
        if path.suffix != ".safetensors":
            return "is cut off" if start.startswith(b"PK") and not zipfile.is_zipfile(path) else None
        length = int.from_bytes(start[:8], "little")
        if size < 8 or not 2 <= length <= min(size - 8, _LONGEST_HEADER):
            return f"is cut off, or no safetensors file: it has {size:,} bytes, and no header"
    try:
        entries = _header(path).values()
        ends = [entry["data_offsets"][1] for entry in entries]
        sizes = [size for entry in entries for size in entry["shape"]]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return "has a damaged header"
    if not all(isinstance(size, int) and size >= 0 for size in sizes):
        return "has a damaged header"
    if not ends:
        return "has no tensors"
    whole = 8 + length + max(ends, default=0)
    return None if size == whole else f"is cut off: it has {size:,} bytes, and its header says {whole:,}"


def _header(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header: dict[str, Any] = json.loads(file.read(min(length, _LONGEST_HEADER)))
    header.pop("__metadata__", None)
    return header


def tensor_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a safetensors file's tensors by their names. Reads its header only."""
    return {name: tuple(entry["shape"]) for name, entry in _header(path).items()}


def folder_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors in a folder's safetensors files. Empty: it has none."""
    found: dict[str, tuple[int, ...]] = {}
    for path in weight_files(folder):
        if path.suffix == ".safetensors":
            found |= tensor_shapes(path)
    return found


def settings_problem(folder: Path) -> str | None:
    """Return which of a folder's JSON files, the tokenizer's among them, is cut off or damaged. None: none is."""
    for path in sorted(folder.glob("*.json")):
        try:
            with path.open("rb") as file:
                if file.read(len(_GIT_LFS)) == _GIT_LFS:
                    return f"{path.name} is a pointer of Git LFS, not the file itself: run 'git lfs pull'."
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as e:
            return f"{path.name} is cut off or damaged ({e}). Download it again."
        if path.name == "config.json" and (problem := config_problem(found)):
            return f"{path.name} can't be right: {problem}."
    return None


def has_mistral_tokenizer(folder: Path) -> bool:
    """Whether vLLM would take Mistral's own tokenizer for a folder (``vllm.tokenizers.registry``)."""
    own = (folder / "tekken.json").is_file() or any(folder.glob("tokenizer.model.v*"))
    return own and any(folder.glob("consolidated*.safetensors"))


def has_hf_tokenizer(folder: Path) -> bool:
    """Whether a folder has a tokenizer in Hugging Face's format."""
    return (folder / "tokenizer.json").is_file()


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder has a file from which a tokenizer can be made."""
    return any(True for _ in _tokenizer_files(folder))


def _tokenizer_files(folder: Path) -> Iterator[Path]:
    for name in _TOKENIZERS:
        if (folder / name).is_file():
            yield folder / name
    for pattern in _TOKENIZERS_BY_ENDING:
        yield from folder.glob(pattern)


def check_folder_complete(folder: Path, *, weights: bool = True, tokenizer: bool = True) -> None:
    """Raise ``ModelError`` if a file of a model is missing, cut off or damaged.

    Args:
        folder: the model's folder.
        weights: whether its weights are looked at.
        tokenizer: whether it has to have a tokenizer.
    """
    problem = settings_problem(folder) or (weights_problem(folder) if weights else None)
    if problem is not None:
        raise ModelError(f"the folder {str(folder)!r} is not complete: {problem}")
    if tokenizer and not has_tokenizer(folder):
        raise ModelError(
            f"the folder {str(folder)!r} has no tokenizer: copy tokenizer.json and its like into it, or pass "
            'engine_args={"tokenizer": "owner/name"} with the model that it was trained from.'
        )
