"""What reading one cell may cost: seconds and bytes of memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from daft_vllm.engine.requests.media import MediaError

SECONDS = 60.0
"""How long the files of one cell may take by default, fetched and decoded."""
MEMORY = 1 << 30
"""How many bytes of memory the decoding of one file may take by default."""
_LONGEST = 1e6
"""Seconds. Not every wait of Python's and of the kernel takes more than 2 million."""


class Budget:
    """The time that all files of one cell may take together. Time that a file waits for its turn doesn't count.

    Args:
        seconds: how long they may take.
        memory: how many bytes of memory the decoding of each may take.
    """

    def __init__(self, seconds: float = SECONDS, memory: int = MEMORY) -> None:
        self.seconds = seconds
        self.memory = memory
        self._left = min(seconds, _LONGEST)
        self._lock = threading.Lock()

    @contextmanager
    def spend(self) -> Iterator[float]:
        """Count the time of the ``with`` block, and give it the seconds that are left.

        Raises:
            MediaError: no time is left.
        """
        with self._lock:
            left = self._left
        if left <= 0:
            raise self.too_slow()
        began = time.monotonic()
        try:
            yield left
        finally:
            with self._lock:
                self._left -= time.monotonic() - began

    def too_slow(self) -> MediaError:
        """Return the error of a cell whose files take too long."""
        return MediaError(
            "unavailable_media",
            f"reading it takes more than {self.seconds:g} seconds: raise files=FileAccess(max_seconds=...)",
        )

    def too_large(self) -> MediaError:
        """Return the error of a file whose decoding takes too much memory."""
        return MediaError(
            "invalid_media",
            f"decoding it takes more than {self.memory >> 20} MiB of memory: raise files=FileAccess(max_memory=...)",
        )
