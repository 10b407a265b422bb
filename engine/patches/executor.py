"""Runs vLLM's model in the same process as vLLM's scheduler, on a CPU too."""

from __future__ import annotations

from typing import Any

from vllm.v1.executor.uniproc_executor import UniProcExecutor

from daft_vllm.engine.setup.environment import AMX_KERNELS, CPU_KERNELS


class InCoreExecutor(UniProcExecutor):  # type: ignore[misc]  # vLLM's types are not followed
    """``UniProcExecutor`` under a name of its own.

    On a CPU vLLM 0.32 replaces the executor "uni" by "mp" (``platforms/cpu.py``): variables bind OpenMP's threads, and
    they have to be set before the process starts. ``Core.start`` sets them for the core's process. ``start_args`` names
    this class, which vLLM does not replace. So the model needs no process of its own. That saves its import of vLLM and
    torch (a third of the load) and its memory. It also saves two processes that spin on shared memory while they wait
    for each other.

    This class also applies the patches in ``kernels.py``, ``generators.py`` and ``masks.py``.
    """

    def _init_executor(self) -> None:
        from daft_vllm.engine.patches.cpu.generators import register_cpu_generators
        from daft_vllm.engine.patches.cpu.masks import register_cpu_masks
        from daft_vllm.engine.patches.registry import apply_patch

        if not apply_patch("kernels", _register_kernels):
            _forget_kernels(self.vllm_config.kernel_config.ir_op_priority)
        apply_patch("generators", register_cpu_generators)
        if not self.vllm_config.use_v2_model_runner:  # that one applies masks in another way
            apply_patch("masks", register_cpu_masks)
        super()._init_executor()


def _register_kernels() -> None:
    from daft_vllm.engine.patches.cpu.kernels import register_cpu_kernels  # this import needs vLLM's operators

    register_cpu_kernels()


def _forget_kernels(priority: Any) -> None:
    """Take the kernels out of the lists of operators' implementations: vLLM refuses a name that isn't registered."""
    for operator in AMX_KERNELS["ir_op_priority"]:
        names = getattr(priority, operator, None)
        if names and CPU_KERNELS in names:
            names.remove(CPU_KERNELS)


class ReproducibleExecutor(InCoreExecutor):
    """``InCoreExecutor`` with the patch in ``same_bits.py``, which an engine with ``reproducible=True`` needs."""

    def _init_executor(self) -> None:
        from daft_vllm.engine.patches.cpu.generators import register_cpu_generators
        from daft_vllm.engine.patches.registry import apply_patch
        from daft_vllm.errors import EngineStartError

        applied = apply_patch("same_bits", _register_same_bits) and apply_patch("generators", register_cpu_generators)
        if not applied:
            raise EngineStartError("reproducible=True needs changes of vLLM that could not be made: leave it out.")
        super()._init_executor()


def _register_same_bits() -> None:
    from daft_vllm.engine.patches.cpu.same_bits import register_same_bits  # this import needs vLLM's operators

    register_same_bits()
