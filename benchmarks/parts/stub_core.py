"""A core of vLLM without a model: it answers each request with its own last tokens, one a step, as fast as it is asked.

It stands in the place of the client of vLLM's core, so that all else in the front end is real: what vLLM does with a
request before it is sent, the encoding, the decoding of each step's outputs, and what vLLM does with each token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch


class StubCore:
    """What ``AsyncLLM`` uses of a core's client, for text requests.

    Args:
        sequences: ``max_num_seqs``.
        whole: send an answer's tokens when it is complete, as with ``engine/patches/whole_answers.py``.
    """

    engine_ranks_managed = (0,)

    def __init__(self, sequences: int, *, whole: bool) -> None:
        from vllm.v1.engine import EngineCoreOutputs
        from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

        self.resources = SimpleNamespace(engine_manager=SimpleNamespace(processes=[]), engine_dead=False)
        self._sequences = sequences
        self._whole = whole
        self._encoder = MsgpackEncoder()
        self._decoder = MsgpackDecoder(EngineCoreOutputs)
        self._waiting: list[Any] = []
        self._running: dict[str, tuple[list[int], int]] = {}
        self._asked = asyncio.Event()

    async def get_supported_tasks_async(self) -> tuple[str, ...]:
        """Return what a model that writes does."""
        return ("generate",)

    async def add_request_async(self, request: Any) -> None:
        """Take a request, after what is done to send one."""
        self._encoder.encode(request)
        self._waiting.append(request)
        self._asked.set()

    async def get_output_async(self) -> Any:
        """Return the outputs of one step, after what is done to receive them. The step itself takes no time."""
        while not (self._waiting or self._running):
            self._asked.clear()
            await self._asked.wait()
        await asyncio.sleep(0)
        return self._decoder.decode(self._encoder.encode(self._step()))

    def _step(self) -> Any:
        from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
        from vllm.v1.metrics.stats import PrefillStats, SchedulerStats

        begun = self._waiting[: self._sequences - len(self._running)]
        del self._waiting[: len(begun)]
        self._running |= {one.request_id: (one.prompt_token_ids[-one.sampling_params.max_tokens :], 0) for one in begun}
        prefilled = {one.request_id: len(one.prompt_token_ids) for one in begun}
        outputs = []
        for request_id, (tokens, done) in list(self._running.items()):
            is_first, is_last = done == 0, done == len(tokens) - 1
            new = tokens[1:] if self._whole and is_last and not is_first else tokens[done : done + 1]
            output = EngineCoreOutput(request_id, new)
            if is_first:
                output.prefill_stats = PrefillStats(num_prompt_tokens=prefilled[request_id])
            if is_last:
                del self._running[request_id]
                output.finish_reason = FinishReason.LENGTH
            else:
                self._running[request_id] = tokens, done + 1
            if is_first or is_last or not self._whole:
                outputs.append(output)
        stats = SchedulerStats(num_running_reqs=len(self._running), num_waiting_reqs=len(self._waiting))
        return EngineCoreOutputs(outputs=outputs, scheduler_stats=stats)

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        """Forget requests."""
        for request_id in request_ids:
            self._running.pop(request_id, None)
        self._waiting = [one for one in self._waiting if one.request_id not in request_ids]

    def shutdown(self, timeout: float | None = None) -> None:
        """Do nothing: there is no process."""


@contextmanager
def stub_cores(*, whole: bool = True) -> Iterator[None]:
    """Let engines that start inside the ``with`` block have stubs in the place of vLLM's cores. ``whole``: as there."""
    from vllm.v1.engine.core_client import EngineCoreClient

    from daft_vllm.engine.process import core

    def client(*, vllm_config: Any, **_: Any) -> StubCore:
        return StubCore(vllm_config.scheduler_config.max_num_seqs, whole=whole)

    with (
        patch.object(core, "start_core_early", lambda *_, **__: None),
        patch.object(EngineCoreClient, "make_async_mp_client", client),
    ):
        yield
