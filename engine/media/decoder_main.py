"""The main loop of a decoder process. It decodes one file after the other, each within limits of time and memory.

It imports neither vLLM nor torch, so it starts in a third of a second, and has no secrets in its environment.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

from daft_vllm.engine.media.images import decode_image
from daft_vllm.engine.media.pdf import count_pages, draw_page, read_text
from daft_vllm.engine.media.sounds import decode_sound
from daft_vllm.engine.requests.media import MediaError

TASKS: dict[str, Callable[..., tuple[dict[str, Any], Iterator[bytes]]]] = {
    "image": decode_image,
    "sound": decode_sound,
    "pdf pages": count_pages,
    "pdf image": draw_page,
    "pdf text": read_text,
}
OUT_OF_MEMORY = "out of memory"
MEMORY_EXIT = 12
"""The exit code of a decoder whose memory ended while it sent its answer."""
_GRACE_SECONDS = 5
"""The owner kills a decoder that takes too long. If the owner itself is gone, the kernel does, so much later."""


def main() -> None:
    """Serve the connection whose file descriptor is the first argument, until its other end is closed."""
    connection = Connection(int(sys.argv[1]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # it writes no files
    import numpy  # noqa: F401 - before the first file, whose time it is not
    import PIL.Image

    PIL.Image.init()
    connection.send_bytes(b"ready")
    while True:
        try:
            task, seconds, memory, arguments = pickle.loads(connection.recv_bytes())
            data = connection.recv_bytes()
        except EOFError:
            return
        signal.alarm(math.ceil(seconds) + _GRACE_SECONDS)
        resource.setrlimit(resource.RLIMIT_AS, (_used_memory() + memory, resource.RLIM_INFINITY))
        answer, chunks = _answer(TASKS[task], data, arguments)
        try:
            connection.send_bytes(json.dumps(answer).encode())
            for chunk in filter(None, chunks):
                connection.send_bytes(chunk)
            connection.send_bytes(b"")  # the end
        except BrokenPipeError:
            return
        except MemoryError:
            sys.exit(MEMORY_EXIT)
        del data, chunks
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def _answer(
    task: Callable[..., tuple[dict[str, Any], Iterator[bytes]]], data: bytes, arguments: dict[str, Any]
) -> tuple[dict[str, Any], Iterator[bytes]]:
    try:
        return task(data, **arguments)
    except MediaError as e:
        return {"error": [e.error.code, e.error.message]}, iter(())
    except MemoryError:
        return {"error": [OUT_OF_MEMORY, ""]}, iter(())
    except Exception as e:
        return {"error": ["invalid_media", f"{type(e).__name__}: {e}"]}, iter(())


def _used_memory() -> int:
    """Return how many bytes of address space this process has."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
