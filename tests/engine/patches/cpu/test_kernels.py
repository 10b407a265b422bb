"""The compiled RMS-norm kernels that the engine's core runs on CPUs with AMX."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from daft_vllm.engine import EngineConfig, OfflineEngine
from daft_vllm.engine.setup import environment
from daft_vllm.engine.setup.environment import AMX_KERNELS, CPU_KERNELS, cpu_has_amx, start_args

pytest.importorskip("vllm")


@pytest.fixture(scope="module")
def ops() -> Any:
    """vLLM's operators, with our kernels registered."""
    from vllm import ir

    from daft_vllm.engine.patches.cpu.kernels import register_cpu_kernels

    register_cpu_kernels()
    register_cpu_kernels()  # vLLM may load a plugin twice
    return ir.ops


def _inputs(shape: tuple[int, ...], dtype: Any) -> tuple[Any, Any, Any]:
    import torch

    generator = torch.Generator().manual_seed(0)
    x, residual = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
    return x, residual, torch.rand(shape[-1], generator=generator).to(dtype) + 0.5


@pytest.mark.parametrize("dtype_name", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", [(1, 576), (7, 64), (300, 2048), (5, 9, 128)])
def test_they_compute_what_vllm_computes(ops: Any, dtype_name: str, shape: tuple[int, ...]) -> None:
    import torch

    dtype = getattr(torch, dtype_name)
    x, residual, weight = _inputs(shape, dtype)
    close = ops.rms_norm.get_tolerance(dtype)
    # The kernels round the sum, the norm and the product in other places. On a CPU without AVX-512 results differed by
    # three units in the last place.
    close["rtol"] = max(close["rtol"], 3 * torch.finfo(dtype).eps)
    for args, op in (((x, weight), ops.rms_norm), ((x, residual, weight), ops.fused_add_rms_norm)):
        kernel, native = op.impls[CPU_KERNELS], op.impls["native"]
        assert kernel.supported
        assert kernel.supports_args(*args, 1e-5)
        torch.testing.assert_close(kernel.func_impl_fn(*args, 1e-5), native.func_impl_fn(*args, 1e-5), **close)


def test_a_view_is_normalized_as_its_copy_is(ops: Any) -> None:
    """Qwen3 normalizes each head of a query that is a slice of a larger matrix."""
    x, _, weight = _inputs((6, 3, 64), _float32())
    view = x[:, 1:]
    kernel = ops.rms_norm.impls[CPU_KERNELS]
    assert not view.is_contiguous()
    assert kernel.impl_fn(view, weight, 1e-5).equal(kernel.impl_fn(view.clone(), weight, 1e-5))


def test_a_row_does_not_depend_on_its_batch(ops: Any) -> None:
    x, _, weight = _inputs((65, 576), _float32())
    kernel = ops.rms_norm.impls[CPU_KERNELS].impl_fn
    assert kernel(x, weight, 1e-5)[64:].equal(kernel(x[64:].contiguous(), weight, 1e-5))


def test_what_they_cannot_compute_is_left_to_vllm(ops: Any) -> None:
    x, residual, weight = _inputs((4, 64), _float32())
    odd, _, odd_weight = _inputs((4, 20), _float32())
    single, pair = ops.rms_norm.impls[CPU_KERNELS], ops.fused_add_rms_norm.impls[CPU_KERNELS]
    assert single.supports_args(x, weight, 1e-5)
    assert pair.supports_args(x, residual, weight, 1e-5)
    assert not single.supports_args(x, None, 1e-5)
    assert not single.supports_args(x, weight, 1e-5, 32)
    assert not single.supports_args(x, weight.double(), 1e-5)
    assert not single.supports_args(odd, odd_weight, 1e-5)
    assert not single.supports_args(x, weight[:1], 1e-5)
    assert not single.supports_args(x, weight.repeat(2)[::2], 1e-5)
    assert not single.supports_args(x.double(), weight.double(), 1e-5)
    assert not pair.supports_args(x, residual[:1], weight, 1e-5)
    assert not pair.supports_args(x.t().contiguous().t(), residual, weight, 1e-5)
    assert not pair.supports_args(x, residual.t().contiguous().t(), weight, 1e-5)
    assert not pair.supports_args(x, residual.double(), weight, 1e-5)


_COUNTED = """
import sys
from daft_vllm.engine.patches.cpu import kernels
from daft_vllm.engine.setup.environment import AMX_KERNELS, start_args
from daft_vllm.engine import EngineConfig

calls = {"one": 0, "pair": 0}
one, pair = kernels._rms_norm, kernels._fused_add_rms_norm

def counted_one(x: kernels.Tensor, weight: kernels.Tensor | None, epsilon: float, variance_size: int | None = None
                ) -> kernels.Tensor:
    calls["one"] += 1
    return one(x, weight, epsilon, variance_size)

def counted_pair(x: kernels.Tensor, x_residual: kernels.Tensor, weight: kernels.Tensor | None, epsilon: float,
                 variance_size: int | None = None) -> tuple[kernels.Tensor, kernels.Tensor]:
    calls["pair"] += 1
    return pair(x, x_residual, weight, epsilon, variance_size)

kernels._rms_norm, kernels._fused_add_rms_norm = counted_one, counted_pair
from vllm import LLM, SamplingParams
own = {"kernel_config": AMX_KERNELS, "load_format": "dummy", "kv_cache_memory_bytes": 1 << 26, "max_model_len": 64}
args = start_args(EngineConfig(sys.argv[1], own))
llm = LLM(model=sys.argv[1], **args)
before = dict(calls)
llm.generate("hello", SamplingParams(max_tokens=3, ignore_eos=True), use_tqdm=False)
print("CALLS", calls["one"] - before["one"], calls["pair"] - before["pair"])
"""


def test_the_core_runs_them(tiny: str) -> None:
    """Counts the calls in a process that runs the core itself: two layers and three steps."""
    environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_NUM_OF_RESERVED_CPU": "0"}
    done = subprocess.run(
        [sys.executable, "-c", _COUNTED, tiny], env=environment, capture_output=True, text=True, timeout=120
    )
    # A step has one norm that adds nothing, the first. Four norms add: one in the first layer, two in the second, and
    # the last one.
    assert "CALLS 3 12" in done.stdout, done.stdout + done.stderr


def test_the_engine_asks_for_them_where_they_pay(engine: OfflineEngine) -> None:
    priority = engine._state.core.llm.vllm_config.kernel_config.ir_op_priority
    assert priority.rms_norm[0] == priority.fused_add_rms_norm[0] == (CPU_KERNELS if cpu_has_amx() else "native")


def test_without_amx_vllm_keeps_its_own_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "cpu_has_amx", lambda: False)
    assert "kernel_config" not in start_args(EngineConfig("m"))


def test_what_the_user_sets_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "cpu_has_amx", lambda: True)
    own = {"ir_op_priority": {"rms_norm": ["native"]}}
    assert start_args(EngineConfig("m"))["kernel_config"] == AMX_KERNELS
    assert start_args(EngineConfig("m", {"kernel_config": own}))["kernel_config"] == own
    for args in ({"ir_op_priority": {"rms_norm": ["native"]}}, {"enforce_eager": False}, {"tensor_parallel_size": 2}):
        assert "kernel_config" not in start_args(EngineConfig("m", args))
    assert "kernel_config" not in start_args(EngineConfig("m", gpus=1))


def _float32() -> Any:
    import torch

    return torch.float32


def test_kernels_that_could_not_be_registered_are_not_asked_for() -> None:
    """vLLM refuses a name in these lists that no implementation has."""
    from types import SimpleNamespace

    from daft_vllm.engine.patches.executor import _forget_kernels

    priority = SimpleNamespace(rms_norm=[CPU_KERNELS, "native"], fused_add_rms_norm=["native"], other=["x"])
    _forget_kernels(priority)
    assert priority == SimpleNamespace(rms_norm=["native"], fused_add_rms_norm=["native"], other=["x"])
