"""The simulated engine does in each step what vLLM's scheduler does."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from benchmarks.cluster.replica import EngineSize, Load, Replica
from benchmarks.cluster.steps import engine_of
from benchmarks.cluster.traces import Row, Shape, trace_of
from benchmarks.cluster.vllm_scheduler import VLLMReplica
from daft_vllm.model_configs.cards import card_of
from daft_vllm.model_configs.memory import plan_memory, weights_of
from daft_vllm.model_configs.registry import config_of
from daft_vllm.model_configs.steps import StepTime

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 1 << 30,
    "max_position_embeddings": 4096,
}


ANSWERS = ((0.7, 1, 40), (0.3, 41, 150))
TRACES = {
    "one level": Shape(300, ((12, 256),), 40, ANSWERS),
    "two levels": Shape(300, ((4, 100), (5, 60)), 50, ANSWERS),
    "all shared": Shape(60, ((60, 80),), 7, ANSWERS),
    "nothing shared": Shape(100, (), 500, ANSWERS),
}


@pytest.mark.parametrize("trace", TRACES)
@pytest.mark.parametrize(
    ("blocks", "sequences", "tokens"),
    [
        (4000, 16, 2048),
        (500, 12, 8192),  # few blocks: prefixes are forgotten
        (300, 7, 200),  # a prompt takes several steps
    ],
)
def test_each_step_is_that_of_vllm(trace: str, blocks: int, sequences: int, tokens: int, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    rows = trace_of(trace, TRACES[trace]).rows
    size = EngineSize(sequences, tokens, blocks)
    size.check(max(row.prompt + row.output for row in rows))
    ours, theirs = Replica(size), VLLMReplica(size, tmp_path, 4096)
    rng = random.Random(3)
    waiting = [*rows]
    while waiting or ours.in_flight:
        if waiting and ours.in_flight < 2 * sequences and rng.random() < 0.8:
            count = rng.randint(1, 12)
            ours.waiting.extend(waiting[:count])
            theirs.send(waiting[:count])
            del waiting[:count]
        load, ended = ours.step()
        assert (load, [row.index for row in ended]) == theirs.step(), ours.steps
    assert ours.cached == theirs.cached
    assert len(ours.cached) == len(rows)
    if trace == "one level":
        computed_once = 12 * 256 + 300 * 40
        assert (ours.computed_tokens > computed_once) is (blocks < 500), "few blocks: prefixes are computed again"


def test_a_row_by_hand() -> None:
    row = Row(0, (1, 2), 1 << 24, 0, prompt=40, output=3)
    other = Row(1, (1, 2), 1 << 25, 0, prompt=40, output=1)
    replica = Replica(EngineSize(2, 32, 100))
    replica.waiting.extend((row, other))
    assert replica.step() == (Load(new=32, decode=0, context=0), [])
    # 8 tokens are left of the first; the second finds 32 tokens, and needs 8.
    assert replica.step() == (Load(new=16, decode=0, context=64), [other])
    assert replica.step() == (Load(new=0, decode=1, context=40), [])
    assert replica.step() == (Load(new=0, decode=1, context=41), [row])
    assert replica.step() == (Load(0, 0, 0), [])
    assert (replica.computed_tokens, replica.output_tokens, replica.cached) == (48, 4, {0: 0, 1: 32})


def test_too_few_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="need 81 KV blocks, and there are 80"):
        EngineSize(4, 512, 80).check(320)
    EngineSize(4, 512, 81).check(320)


@pytest.mark.parametrize("reading", [0, 128, 512, 2048, 8128])
def test_the_sum_is_close_to_the_estimate_of_a_step(reading: int) -> None:
    size, seconds = engine_of("Qwen/Qwen3-8B", "H100", max_num_seqs=64, max_model_len=4096)
    config = config_of("Qwen/Qwen3-8B")
    assert config is not None
    args = {"max_num_seqs": 64, "max_num_batched_tokens": 8192, "max_model_len": 4096}
    plan = plan_memory(config.architecture, weights_of(config, args), card_of("H100"), engine_args=args)
    exact = StepTime(config, plan, args).seconds(64, reading, 576, 0)
    assert seconds.of(Load(reading, 64, 64 * 576)) == pytest.approx(exact, rel=0.08)
    assert 20_000 < size.blocks < 30_000
