"""The main loop of a decoder process. It decodes one file after the other, each within limits of time and memory.

It imports neither vLLM nor torch, so it starts in a third of a second, and has no secrets in its environment.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from typing import Any

from daft_vllm.children import limited, own_connection
from daft_vllm.engine.media.exchange import Exchange, Parts, joined, parts_of
from daft_vllm.engine.media.images import decode_image
from daft_vllm.engine.media.pdf import count_pages, draw_page, read_text
from daft_vllm.engine.media.sounds import decode_sound
from daft_vllm.engine.requests.media import MediaError

TASKS: dict[str, Callable[..., tuple[dict[str, Any], Parts]]] = {
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
    """Serve the connection whose file descriptor is the first argument, until its other end is closed.

    The second argument is the file descriptor of the shared memory.
    """
    exchange = Exchange(own_connection(), int(sys.argv[2]))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # it writes no files
    import numpy  # noqa: F401 - before the first file, whose time it is not
    import PIL.Image

    PIL.Image.init()
    exchange.send({"is_ready": True}, parts_of(b""))
    while True:
        try:
            request, parts = exchange.receive()
            data = joined(parts)
        except EOFError:
            return
        try:
            with limited(request["seconds"], request["memory"]):
                answer, parts_of_answer = _answer(TASKS[request["task"]], data, request["arguments"])
                exchange.send(answer, parts_of_answer)
                del data, parts_of_answer
        except BrokenPipeError:
            return
        except MemoryError:
            sys.exit(MEMORY_EXIT)


def _answer(
    task: Callable[..., tuple[dict[str, Any], Parts]], data: bytes, arguments: dict[str, Any]
) -> tuple[dict[str, Any], Parts]:
    try:
        return task(data, **arguments)
    except MediaError as e:
        return {"error": [e.error.code, e.error.message]}, parts_of(b"")
    except MemoryError:
        return {"error": [OUT_OF_MEMORY, ""]}, parts_of(b"")
    except Exception as e:
        return {"error": ["invalid_media", f"{type(e).__name__}: {e}"]}, parts_of(b"")


if __name__ == "__main__":
    main()
