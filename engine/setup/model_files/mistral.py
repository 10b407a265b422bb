"""Models with Mistral's own tokenizer: the engine gets a tokenizer in Hugging Face's format in its place.

Prompts are guarded by way of Hugging Face's tokenizers (``engine/text/guard.py``), and vLLM would take Mistral's own.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from daft_vllm.engine.setup.model_files.folder import has_hf_tokenizer, has_mistral_tokenizer
from daft_vllm.errors import ModelError

logger = logging.getLogger("daft_vllm")
_OWNER = "mistralai/"
_SMALL_FILES = ("*.json", "*.jinja")
_INDEX = "model.safetensors.index.json"


def hf_tokenizer_args(model: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of vLLM's engine with which it uses a tokenizer in Hugging Face's format. Empty: it does so.

    Args:
        model: folder of a model, or its name on the hub. Of Mistral's own models there, the small files are downloaded.
        args: arguments of vLLM's engine. Those that the user has set stay.

    Raises:
        ModelError: ``tekken.json`` can't be converted.
    """
    if "tokenizer_mode" in args or args.get("tokenizer"):
        return {}
    folder = _folder(model)
    if folder is None:
        return {}
    wanted: dict[str, Any] = {"tokenizer_mode": "hf"}
    if not has_hf_tokenizer(folder):
        wanted["tokenizer"] = str(converted_tokenizer(folder))
    if (folder / "params.json").is_file() and (folder / "config.json").is_file() and (folder / _INDEX).is_file():
        # The classes that vLLM chooses by params.json take Mistral's own tokenizer only.
        wanted |= {"config_format": "hf", "load_format": "safetensors"}
    return {name: value for name, value in wanted.items() if name not in args}


def _folder(model: str) -> Path | None:
    """Return the folder of a model with Mistral's own tokenizer; None if it has none, or can't be looked at."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder if has_mistral_tokenizer(folder) else None
    if not model.lower().startswith(_OWNER):
        return None
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(model, allow_patterns=list(_SMALL_FILES)))
    except Exception as e:  # vLLM, which asks for all files, will say so
        logger.debug("the files of %s can't be downloaded: %s", model, e)
        return None
    return folder if (folder / "tekken.json").is_file() else None


def converted_tokenizer(folder: Path) -> Path:
    """Return a folder with a model's ``tekken.json`` in Hugging Face's format. It is converted once.

    transformers converts it, with a chat template that mistral-common writes, if the model has none.

    Raises:
        ModelError: there is no ``tekken.json``, or it can't be converted.
    """
    from filelock import FileLock

    source = folder / "tekken.json"
    if not source.is_file():
        raise ModelError(
            f'{str(folder)!r} has a tokenizer of Mistral\'s older format only: pass engine_args={{"tokenizer": '
            '"owner/name"} with a model of the same family that has a tokenizer.json.'
        )
    settings = [path for path in (folder / "config.json",) if path.is_file()]
    parts = [source, *sorted(folder.glob("chat_template.*")), *settings]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in parts)).hexdigest()[:16]
    cache = Path(os.environ.get("DAFT_VLLM_CACHE") or os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    target = (cache if os.environ.get("DAFT_VLLM_CACHE") else cache / "daft-vllm") / f"tekken-{digest}"
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_suffix(".lock")):
        if (target / "tokenizer.json").is_file():
            return target
        part = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
        try:
            from transformers.integrations.mistral import convert_tekken_tokenizer

            convert_tekken_tokenizer(str(source)).save_pretrained(part)
            for path in settings:  # vLLM looks for the kind of model beside a tokenizer
                shutil.copy(path, part)
            part.rename(target)
        except Exception as e:
            raise ModelError(
                f"the tokenizer {str(source)!r} can't be converted ({type(e).__name__}: {e}): pip install "
                'mistral-common, download the file again, or pass engine_args={"tokenizer": "owner/name"}.'
            ) from e
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return target
