"""Loads media while vLLM generates: a few rows ahead of it, and once for all rows that wait for the same medium."""

from __future__ import annotations

import asyncio
import math
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from daft_vllm.engine.requests.content import Media
from daft_vllm.engine.requests.media import MediaError
from daft_vllm.engine.scheduling.row import Row

if TYPE_CHECKING:
    from vllm.inputs import EngineInput

LOAD_SECONDS = 120.0
"""How long a medium may take to load, from the time when a thread begins. Readers have their own, shorter timeouts."""
_THREADS = min(16, 2 * (os.cpu_count() or 1))
_ROWS_AHEAD = 2 * _THREADS
"""How many rows load or process media at once. Loaded media stay in memory, as pixels, until vLLM's processor has taken
them, one row at a time."""


class MediaLoader:
    """Loads and processes the media of rows. ``rows`` is the number of rows that are not ready for vLLM yet.

    For the event loop's thread that first calls ``prompt``.

    Args:
        renderer: vLLM's renderer.
        max_prompt_tokens: the longest prompt in tokens, with the tokens of its media.
    """

    def __init__(self, renderer: Any, max_prompt_tokens: int) -> None:
        self._renderer = renderer
        self._max_prompt_tokens = max_prompt_tokens
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="daft-vllm-media")
        self._room = asyncio.Semaphore(_ROWS_AHEAD)
        self._loads: dict[bytes, tuple[asyncio.Future[Any], int]] = {}
        self._began: dict[bytes, float] = {}
        self.rows = 0
        self.loaded = 0
        self.seconds = 0.0

    async def prompt(self, row: Row, *, resend: bool = False) -> EngineInput:
        """Return a row's prompt for vLLM, and set its ``prompt_tokens``.

        Args:
            row: the row.
            resend: send the media even if vLLM's core should already have them in its cache.

        Raises:
            MediaError: a medium can't be loaded or processed, or the prompt is too long with it.
        """
        self.rows += 1
        try:
            async with self._room:
                return await self._prompt(row, resend=resend)
        finally:
            self.rows -= 1

    async def _prompt(self, row: Row, *, resend: bool) -> EngineInput:
        data: dict[str, list[Any]] = {}
        for media, loaded in zip(row.items, await asyncio.gather(*map(self._load, row.items)), strict=True):
            data.setdefault(media.kind, []).append(loaded)
        try:
            prompt: EngineInput = await self._renderer.process_for_engine_async(
                {"prompt_token_ids": row.token_ids, "multi_modal_data": data}, time.time(), skip_mm_cache=resend
            )
        except Exception as e:
            raise MediaError("invalid_media", f"the model's processor refused it: {type(e).__name__}: {e}") from e
        row.prompt_tokens = len(prompt["prompt_token_ids"])
        if row.prompt_tokens > self._max_prompt_tokens:
            raise MediaError(
                "prompt_too_long",
                f"the prompt has {row.prompt_tokens} tokens with its media, the context takes {self._max_prompt_tokens}"
                " and an answer: raise max_model_len in engine_args, or use fewer or smaller media",
            )
        return prompt

    def close(self) -> None:
        """Cancel the loads that wait for a thread, and start no more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _load(self, media: Media) -> Any:
        """Return a medium, loaded once for all rows that wait for it."""
        key = media.kind.encode() + media.digest
        future, waiting = self._loads.get(key) or (
            asyncio.get_running_loop().run_in_executor(self._pool, self._timed, key, media),
            0,
        )
        self._loads[key] = (future, waiting + 1)
        try:
            while not (await asyncio.wait([future], timeout=1.0))[0]:
                if time.monotonic() - self._began.get(key, math.inf) > LOAD_SECONDS:
                    raise MediaError("unavailable_media", f"it took more than {LOAD_SECONDS:g} seconds to load")
            return future.result()
        except MediaError:
            raise
        except Exception as e:
            raise MediaError("unavailable_media", f"{type(e).__name__}: {e}") from e
        finally:
            future, waiting = self._loads.pop(key)
            if waiting > 1:
                self._loads[key] = (future, waiting - 1)

    def _timed(self, key: bytes, media: Media) -> Any:
        self._began[key] = started = time.monotonic()
        try:
            return media.load()
        finally:
            self._began.pop(key, None)
            self.loaded += 1
            self.seconds += time.monotonic() - started
