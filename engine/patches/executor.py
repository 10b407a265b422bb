"""vLLM's model in the same process as vLLM's scheduler, on a CPU too."""

from __future__ import annotations

from vllm.v1.executor.uniproc_executor import UniProcExecutor


class InCoreExecutor(UniProcExecutor):  # type: ignore[misc]  # vLLM's types are not followed
    """``UniProcExecutor`` under a name of its own.

    vLLM 0.32 takes the executor "uni" on a CPU for "mp" (``platforms/cpu.py``), because OpenMP's threads are bound by
    variables that have to be set before the process starts. ``Core.start`` sets them for the core's process, and names
    this class, which vLLM leaves alone. The model's own process is saved: its import of vLLM and torch (a third of the
    load), its memory, and two processes that spin on shared memory while they wait for each other.

    It also offers vLLM the kernels of ``kernels.py``, the generators of ``generators.py`` and the masks of
    ``masks.py``.
    """

    def _init_executor(self) -> None:
        from daft_vllm.engine.patches.generators import register_cpu_generators
        from daft_vllm.engine.patches.masks import register_cpu_masks
        from daft_vllm.engine.patches.registry import apply_patch

        apply_patch("kernels", _register_kernels)
        apply_patch("generators", register_cpu_generators)
        if not self.vllm_config.use_v2_model_runner:  # which puts masks on in another way
            apply_patch("masks", register_cpu_masks)
        super()._init_executor()


def _register_kernels() -> None:
    from daft_vllm.engine.patches.kernels import (
        register_cpu_kernels,
    )  # which looks for vLLM's operators as it is imported

    register_cpu_kernels()
