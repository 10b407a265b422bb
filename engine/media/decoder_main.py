"""The main loop of a decoder process. It decodes one file after the other, each within limits of time and memory.

It imports neither vLLM nor torch, so it starts in a third of a second, and has no secrets in its environment.
"""

from __future__ import annotations

import json
import pickle
import resource
import sys
from collections.abc import Callable, Iterator
from typing import Any

from daft_vllm.children import limited, own_connection
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


def main() -> None:
    """Serve the connection whose file descriptor is the first argument, until its other end is closed."""
    connection = own_connection()
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
        try:
            with limited(seconds, memory):
                answer, chunks = _answer(TASKS[task], data, arguments)
                connection.send_bytes(json.dumps(answer).encode())
                for chunk in filter(None, chunks):
                    connection.send_bytes(chunk)
                connection.send_bytes(b"")  # the end
                del data, chunks
        except BrokenPipeError:
            return
        except MemoryError:
            sys.exit(MEMORY_EXIT)


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


if __name__ == "__main__":
    main()
