"""Each change of vLLM is still needed. If a test fails, vLLM has fixed the problem, and the test's change can go."""

from __future__ import annotations

import inspect
import re
from types import SimpleNamespace
from typing import Any

import pytest

from daft_vllm.engine.setup.sources import module_source

pytest.importorskip("vllm")


def source(module: str) -> str:
    text = module_source(module)
    assert text is not None
    return text


def test_either_backend_vllm_has_one_library_for_all_rows() -> None:
    assert "We only support a single backend" in source("vllm.v1.structured_output")


def test_checked_once_vllm_builds_the_grammar_for_the_check_of_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams
    from vllm.v1.structured_output import backend_xgrammar

    checked: list[Any] = []
    monkeypatch.setattr(backend_xgrammar, "validate_xgrammar_grammar", checked.append)
    config, model = SimpleNamespace(backend="xgrammar"), SimpleNamespace(is_diffusion=False)
    shared = StructuredOutputsParams(choice=["yes", "no"])
    for _ in range(3):
        SamplingParams(structured_outputs=shared)._validate_structured_outputs(model, config, object())
    assert len(checked) == 3


def test_statistics_vllm_does_not_watch_its_own_progress() -> None:
    from vllm.v1.engine.async_llm import AsyncLLM

    assert not re.search(r"stall|watchdog|no progress", inspect.getsource(AsyncLLM))


def test_processes_vllm_leaves_its_core_behind_when_the_parent_is_killed() -> None:
    """On Linux it would need ``prctl(PR_SET_PDEATHSIG)`` for this, which ``setup/guardian.py`` uses."""
    for module in ("vllm.v1.engine.core", "vllm.v1.engine.utils", "vllm.utils.system_utils"):
        assert "pdeathsig" not in source(module).lower()


def test_front_end_costs_vllm_counts_for_prometheus_whether_asked_or_not() -> None:
    from vllm import envs
    from vllm.v1.metrics.loggers import StatLoggerManager

    assert "if not custom_prometheus_logger:\n            self.stat_loggers.append(" in inspect.getsource(
        StatLoggerManager.__init__
    )
    assert "enable_envs_cache" not in source("vllm.v1.engine.async_llm")  # vLLM's core and server call it
    assert callable(envs.enable_envs_cache)


def test_whole_answers_vllms_core_sends_each_token_whether_it_is_read_or_not() -> None:
    for module in ("vllm.v1.core.sched.scheduler", "vllm.v1.engine.core"):
        assert "FINAL_ONLY" not in source(module)
        assert "output_kind" not in source(module)


def test_early_core_vllm_starts_a_new_python_for_its_core(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.utils.system_utils import get_mp_context

    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    assert get_mp_context().get_start_method() == "spawn"
    assert "forkserver" not in source("vllm.utils.system_utils")


def test_leftovers_vllm_writes_into_the_temporary_folder_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.utils.network_utils import get_file_store_init_method

    monkeypatch.setenv("VLLM_RPC_BASE_PATH", "/elsewhere")
    assert "/elsewhere" not in get_file_store_init_method()
    assert "_SHM_NAME_PREFIX" not in source("vllm.distributed.device_communicators.shm_broadcast")


def test_openmp_vllm_binds_threads_only_when_it_is_imported() -> None:
    """So the variables of a process that starts before the import have to be predicted."""
    assert "from vllm.platforms import" in source("vllm.utils.ompmultiprocessing")
    assert re.search(r"^import torch$", source("vllm.platforms.cpu"), re.MULTILINE)


def test_argument_names_vllm_needs_torch_to_tell_them() -> None:
    assert re.search(r"^import torch$", source("vllm.engine.arg_utils"), re.MULTILINE)


def test_executor_vllm_puts_the_model_into_a_process_of_its_own() -> None:
    text = source("vllm.platforms.cpu")
    assert re.search(
        r'distributed_executor_backend == "uni"\n\s+\):(\n\s+#.*)*\n.*distributed_executor_backend = "mp"', text
    )


def test_kernels_vllm_offers_its_compiled_ones_to_gpus_only() -> None:
    from vllm import ir
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        pytest.skip("for CPUs")
    current_platform.import_ir_kernels()
    for op in (ir.ops.rms_norm, ir.ops.fused_add_rms_norm):
        assert not op.impls["vllm_c"].supported


def test_generators_torch_cannot_set_an_offset_on_a_cpu() -> None:
    import torch

    generator = getattr(torch.Generator, "__mro__", (torch.Generator,))[-2]  # this process may have replaced it
    with pytest.raises(RuntimeError, match="offset"):
        generator(device="cpu").set_offset(0)


def test_masks_vllm_widens_logits_on_a_cpu() -> None:
    text = source("vllm.v1.structured_output.utils")
    assert re.search(r"logits\.dtype != torch\.float32|logits\.to\(torch\.float32\)|logits\.float\(\)", text)


def test_masks_vllms_v2_model_runner_needs_triton_which_the_cpu_build_lacks() -> None:
    """If this fails, run ``test_registry.py`` with ``VLLM_USE_V2_MODEL_RUNNER=1``: V2 applies masks in another way."""
    from vllm.platforms import current_platform
    from vllm.triton_utils import HAS_TRITON

    if not current_platform.is_cpu():
        pytest.skip("for CPUs")
    assert not HAS_TRITON


def test_adapter_ops_on_a_cpu_rows_without_adapter_get_the_last_one() -> None:
    import torch
    from vllm.lora.ops.torch_ops import lora_ops

    from daft_vllm.engine.patches.cpu.adapter_ops import without_negative_rows

    inputs, weights = torch.ones(3, 4), torch.stack([torch.full((2, 4), value) for value in (1.0, 5.0)])
    found, fixed = torch.zeros(3, 2), torch.zeros(3, 2)
    indices = torch.tensor([0, -1, 1])
    theirs = getattr(lora_ops.bgmv_shrink, "__wrapped__", lora_ops.bgmv_shrink)  # this process may have fixed it
    theirs(inputs, weights, found, indices)
    without_negative_rows(theirs)(inputs, weights, fixed, indices)
    assert found[:, 0].tolist() == [4.0, 20.0, 20.0]
    assert fixed[:, 0].tolist() == [4.0, 0.0, 20.0]
