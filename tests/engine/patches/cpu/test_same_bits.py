"""On a CPU a row's bits don't depend on the other rows of its step; without the patch they do."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from vllm import _custom_ops as ops  # noqa: E402
from vllm.platforms import current_platform  # noqa: E402
from vllm.v1.attention.backend import CommonAttentionMetadata  # noqa: E402

from daft_vllm.engine.patches.cpu import same_attention, same_bits  # noqa: E402
from daft_vllm.engine.patches.cpu.same_attention import equal_tokens, split, tokens_at_once  # noqa: E402
from daft_vllm.engine.patches.cpu.same_bits import BLOCK, RowBlocks  # noqa: E402
from daft_vllm.engine.setup.reproducible import CPU_CORE_VARIABLES  # noqa: E402
from daft_vllm.errors import EngineStartError  # noqa: E402

if not current_platform.is_cpu():
    pytest.skip("these are kernels of vLLM's CPU build", allow_module_level=True)
current_platform.import_kernels()

PAGE, LENGTH = 32, 6000
COUNTS = (1, 2, 5, BLOCK, 33, 100, 256, 300)


def product(columns: int, rows: int) -> tuple[Any, Any]:
    """vLLM's product for a layer in float32, and the weight."""
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(1))
    handler = ops.create_onednn_mm(weight.t(), 32)
    return lambda x, weight, bias: ops.onednn_mm(handler, x, bias), weight


@pytest.mark.parametrize(("columns", "rows"), [(576, 960), (1536, 576), (4096, 512), (2049, 70)])
def test_a_product_has_the_same_bits_for_any_number_of_rows(columns: int, rows: int) -> None:
    linear, weight = product(columns, rows)
    steady = RowBlocks(linear, weight, (rows, columns))
    x = torch.randn(max(COUNTS), columns)
    bias = torch.randn(rows)
    whole = steady(x, weight, bias)
    assert torch.allclose(whole, torch.nn.functional.linear(x, weight, bias), atol=1e-3)
    for count in COUNTS:
        assert torch.equal(steady(x[-count:], weight, bias), whole[-count:]), count
    assert steady(x[:0], weight, bias).shape == (0, rows)
    assert torch.equal(steady(x[:6].reshape(2, 3, columns), weight, bias), whole[:6].reshape(2, 3, rows))


def test_without_blocks_one_row_has_other_bits() -> None:
    linear, weight = product(4096, 512)
    x = torch.randn(40, 4096)
    assert not torch.equal(linear(x[:1], weight, None), linear(x, weight, None)[:1])


def test_a_product_whose_bits_depend_on_the_place_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(same_bits, "_seen", {})

    def by_place(x: Any, weight: Any, bias: Any) -> Any:
        return x[:, :8] * torch.linspace(1, 2, len(x))[:, None]

    def by_size(x: Any, weight: Any, bias: Any) -> Any:
        return x[:, :8] * (1 + (len(x) == 256))

    weight = torch.randn(8, 30)
    with pytest.raises(EngineStartError, match="reproducible=True can't be had on this machine"):
        RowBlocks(by_place, weight, (8, 30))
    assert RowBlocks(by_size, weight, (8, 30))._sizes == (64, BLOCK), "blocks of 256 are not used"


class Attention:
    """vLLM's attention over two rows of 6,000 and 900 keys, in pages in no order."""

    def __init__(self, heads: int, groups: int, width: int = 64, isa: str = "vec") -> None:
        torch.manual_seed(0)
        self.heads, self.groups, self.width, self.isa = heads, groups, width, isa
        self.query = torch.randn(LENGTH, heads, width)
        pages = torch.randperm(LENGTH // PAGE + 1 + 40).to(torch.int32)
        self.tables = torch.stack([pages[: LENGTH // PAGE + 1], torch.cat([pages[-30:], pages[: LENGTH // PAGE - 29]])])
        cache = torch.zeros(len(pages), groups, PAGE * 2, width)
        self.keys, self.values = cache.chunk(2, dim=2)
        at = torch.arange(LENGTH)
        slots = self.tables[0][at // PAGE].long() * PAGE + at % PAGE
        tensors = torch.randn(2, LENGTH, groups, width) * 1.5
        ops.cpu_attn_reshape_and_cache(tensors[0], tensors[1], self.keys, self.values, slots, isa)

    def step(self, first: int, last: int, beside: int = 0, *, patched: bool = True) -> Any:
        """Return the outputs of tokens ``first`` to ``last``, computed in one step with tokens of another row."""
        count = last - first
        starts = torch.tensor([0, count, count + beside][: 2 + bool(beside)], dtype=torch.int32)
        lengths = torch.tensor([last, 900][: 1 + bool(beside)], dtype=torch.int32)
        metadata: Any = CommonAttentionMetadata(
            query_start_loc=starts,
            query_start_loc_cpu=starts,
            seq_lens=lengths,
            num_reqs=len(lengths),
            num_actual_tokens=count + beside,
            max_query_len=max(count, beside),
            max_seq_len=last,
            block_table_tensor=self.tables[: len(lengths)],
            slot_mapping=torch.zeros(0),
        )
        if patched:
            metadata = split(metadata, equal_tokens(self.isa, self.heads, self.groups, self.width, PAGE))
        plan = ops.cpu_attn_get_scheduler_metadata(
            num_reqs=metadata.num_reqs,
            num_heads=self.heads,
            num_kv_heads=self.groups,
            head_dim=self.width,
            seq_lens=metadata.seq_lens,
            dtype=torch.float32,
            query_start_loc=metadata.query_start_loc,
            causal=True,
            sliding_window_size=-1,
            isa=self.isa,
            enable_kv_split=not patched,
        )
        query = torch.cat([self.query[first:last], self.query[:beside]])
        out = torch.zeros_like(query)
        ops.cpu_attention_with_kv_cache(
            query=query,
            key_cache=self.keys,
            value_cache=self.values,
            output=out,
            query_start_loc=metadata.query_start_loc,
            seq_lens=metadata.seq_lens,
            scale=0.125,
            causal=True,
            alibi_slopes=None,
            sliding_window=-1,
            block_table=metadata.block_table_tensor,
            softcap=0.0,
            scheduler_metadata=plan,
            s_aux=None,
        )
        return out[:count]


@pytest.mark.parametrize(
    ("heads", "groups", "width", "isa"),
    [(9, 3, 64, "vec"), (8, 2, 64, "vec"), (4, 4, 128, "vec"), (16, 1, 64, "vec"), (8, 2, 80, "vec16")],
)
def test_attention_has_the_same_bits_for_any_step(heads: int, groups: int, width: int, isa: str) -> None:
    attention = Attention(heads, groups, width, isa)
    whole = attention.step(4000, LENGTH)
    for first in (5989, 5700, 5023):
        assert torch.equal(attention.step(first, LENGTH, beside=300), whole[first - 4000 :]), first
    for token in (4000, 4001, 5555, LENGTH - 1):
        for beside in (0, 1, 77):
            assert torch.equal(attention.step(token, token + 1, beside), whole[token - 4000 : token - 3999]), token
    plain = attention.step(4000, LENGTH, patched=False)
    assert torch.allclose(plain, whole, atol=1e-4)


def test_without_the_patch_attention_depends_on_the_step() -> None:
    attention = Attention(8, 2)
    whole = attention.step(4000, LENGTH, patched=False)
    alone = attention.step(LENGTH - 1, LENGTH, patched=False)
    assert not torch.equal(alone[0], whole[-1])


def test_a_step_of_single_tokens_stays_as_it_is() -> None:
    metadata: Any = SimpleNamespace(max_query_len=1)
    assert split(metadata, 2) is metadata


def test_tokens_are_computed_one_by_one_where_it_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    def builder(window: int) -> Any:
        layers = {"layer": SimpleNamespace(impl=SimpleNamespace(sliding_window=window))}
        config = SimpleNamespace(compilation_config=SimpleNamespace(static_forward_context=layers))
        sizes = {"isa": "vec", "num_heads": 8, "num_kv_heads": 2, "head_dim": 64, "block_size": PAGE}
        return SimpleNamespace(vllm_config=config, layer_names=["layer"], **sizes)

    assert tokens_at_once(builder(-1)) == tokens_at_once(builder(512)) == equal_tokens("vec", 8, 2, 64, PAGE)
    assert tokens_at_once(builder(4096)) == 1
    kernel = ops.cpu_attention_with_kv_cache

    def other_code_for_several(**given: Any) -> None:
        kernel(**given)
        given["output"] += given["query_start_loc"].diff().max().item() > 1

    monkeypatch.setattr(same_attention.ops, "cpu_attention_with_kv_cache", other_code_for_several)
    assert equal_tokens.__wrapped__("vec", 8, 2, 64, PAGE) == 1


FUNCTIONS = """
import torch
import torch.nn.functional as F
torch.manual_seed(0)
torch.set_num_threads(3)
FUNCTIONS = {
    "silu": lambda x: F.silu(x[..., :1001]) * x[..., 1001:2002],
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "rms_norm": lambda x: x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + 1e-5),
}
x = torch.randn(331, 2003) * 3
print([
    name for name, f in FUNCTIONS.items()
    if not all(torch.equal(f(x[i:i + n]), f(x)[i:i + n]) for i, n in ((0, 1), (5, 7), (100, 64), (330, 1)))
])
"""


@pytest.mark.parametrize("reproducible", [True, False])
def test_torchs_functions_have_the_same_bits_for_any_number_of_rows(reproducible: bool) -> None:
    environment = {**os.environ, **(CPU_CORE_VARIABLES if reproducible else {})}
    command = [sys.executable, "-c", FUNCTIONS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    print(done.stdout)
    if reproducible:
        assert done.stdout == "[]\n"
    else:
        assert done.stdout != "[]\n", "torch no longer needs the variable"
