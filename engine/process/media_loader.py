"""Loads media while vLLM generates: a few rows ahead of it, and once for all rows that wait for the same medium."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

from daft_vllm.engine.requests.content import Media
from daft_vllm.engine.requests.media import MediaError
from daft_vllm.engine.scheduling.row import Row
from daft_vllm.giving_up import run

if TYPE_CHECKING:
    from vllm.inputs import EngineInput

_THREADS = 16
"""How many media are loaded at once. Most of the threads wait: for a server, or for a decoder process."""
_ROWS_AHEAD = 16
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
        self._room = asyncio.Semaphore(_ROWS_AHEAD)
        self._threads = asyncio.Semaphore(_THREADS)
        self._loads: dict[bytes, tuple[asyncio.Task[Any], int]] = {}
        self._is_closed = False
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
        """Start no more loads."""
        self._is_closed = True

    async def _load(self, media: Media) -> Any:
        """Return a medium, loaded once for all rows that wait for it."""
        key = media.kind.encode() + media.digest
        if key not in self._loads:
            task = asyncio.ensure_future(self._in_thread(media))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # perhaps nobody waits any more
            self._loads[key] = (task, 0)
        task, waiting = self._loads[key]
        self._loads[key] = (task, waiting + 1)
        try:
            return await asyncio.shield(task)
        except MediaError:
            raise
        except Exception as e:
            raise MediaError("unavailable_media", f"{type(e).__name__}: {e}") from e
        finally:
            task, waiting = self._loads.pop(key)
            if waiting > 1:
                self._loads[key] = (task, waiting - 1)

    async def _in_thread(self, media: Media) -> Any:
        """Load a medium in another thread. One that hangs keeps its thread, but neither its place nor the process."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def load() -> None:
            result: Any = None
            error: Exception | None = None
            try:
                result = media.load()
            except Exception as e:
                error = e
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_settle, future, result, error)

        async with self._threads:
            if self._is_closed:
                raise MediaError("unavailable_media", "the engine is closed")
            started = time.monotonic()
            run(load)
            try:
                return await asyncio.wait_for(future, media.seconds)
            except TimeoutError:
                raise MediaError("unavailable_media", f"it took more than {media.seconds:g} seconds to load") from None
            finally:
                self.loaded += 1
                self.seconds += time.monotonic() - started


def _settle(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():  # nobody waits any more
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
