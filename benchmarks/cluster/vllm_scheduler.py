"""vLLM's own scheduler and pool of KV blocks with made-up answers, to compare ``Replica`` with.

It is made as vLLM's tests make theirs (vllm-project/vllm, ``tests/v1/core/utils.py``, commit 00620f91), of a model's
config without weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.cluster.replica import EngineSize, Load
from benchmarks.cluster.traces import BLOCK, Row


class VLLMReplica:
    """Like ``Replica``, with vLLM's scheduler.

    Args:
        size: its limits.
        model: a folder with the ``config.json`` of any model that writes text.
        max_model_len: context, in tokens.
    """

    def __init__(self, size: EngineSize, model: Path, max_model_len: int) -> None:
        import torch
        from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.structured_output import StructuredOutputManager

        config = VllmConfig(
            model_config=ModelConfig(model=str(model), skip_tokenizer_init=True, max_model_len=max_model_len),
            scheduler_config=SchedulerConfig(
                max_num_seqs=size.max_num_seqs,
                max_num_batched_tokens=size.max_num_batched_tokens,
                max_model_len=max_model_len,
                is_encoder_decoder=False,
                async_scheduling=False,
            ),
            cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=True),
            device_config=DeviceConfig("cpu"),
        )
        config.cache_config.num_gpu_blocks = size.blocks
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
        self._scheduler: Any = Scheduler(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(
                size.blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
            ),
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK,
            hash_block_size=BLOCK,
        )
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(BLOCK, sha256)
        self._requests: dict[str, tuple[Row, Any]] = {}
        self._answers = iter(range(1 << 28, 1 << 30))
        self.cached: dict[int, int] = {}

    def send(self, rows: Sequence[Row]) -> None:
        """Send rows."""
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        for row in rows:
            params = SamplingParams(ignore_eos=True, max_tokens=row.output)
            request = Request(str(row.index), tokens_of(row), params, None, block_hasher=self._hasher)
            self._requests[request.request_id] = row, request
            self._scheduler.add_request(request)

    def step(self) -> tuple[Load, list[int]]:
        """Make a step. Return what it computed, and the indexes of the rows that are answered after it."""
        from vllm.v1.outputs import ModelRunnerOutput

        planned = self._scheduler.schedule()
        new = decode = context = 0
        samples = []
        for name, tokens in planned.num_scheduled_tokens.items():
            row, request = self._requests[name]
            before = request.num_computed_tokens - tokens  # vLLM counts a step's tokens when it plans the step
            context += before
            if before < row.prompt:
                new += tokens
            else:
                decode += tokens
            samples.append([next(self._answers)] if before + tokens >= row.prompt else [])
        for begun in planned.scheduled_new_reqs:
            self.cached[self._requests[begun.req_id][0].index] = begun.num_computed_tokens
        names = list(planned.num_scheduled_tokens)
        output = ModelRunnerOutput(names, {name: i for i, name in enumerate(names)}, samples)
        self._scheduler.update_from_output(planned, output)
        ended = [name for name in names if self._requests[name][1].is_finished()]
        return Load(new, decode, context), [self._requests.pop(name)[0].index for name in ended]


def tokens_of(row: Row) -> list[int]:
    """Return token ids for a row's prompt: those of a block are its id, those after the last block the row's place."""
    tokens = [block for block in row.blocks for _ in range(BLOCK)]
    return tokens + [row.index] * (row.prompt - len(tokens))
