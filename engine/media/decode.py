"""Images, sounds and PDF files as vLLM takes them. Each is decoded in a process that can be killed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from functools import partial
from typing import Any

from daft_vllm.engine.media.exchange import joined
from daft_vllm.engine.media.images import PIXELS
from daft_vllm.engine.media.limits import Budget
from daft_vllm.engine.media.pdf import LONGEST_SIDE
from daft_vllm.engine.media.processes import POOL
from daft_vllm.engine.requests.media import MediaError

_BYTES_PER_PIXEL = 9
"""How much memory an image takes for each of its pixels, here and in the decoder together."""


def image_from_bytes(data: bytes, budget: Budget | None = None) -> Any:
    """Return the image in a file, upright, in RGB: see ``images.decode_image``.

    Args:
        data: the file.
        budget: what it may cost.

    Raises:
        MediaError: the file is no image, is broken or too large, or takes more than its budget.
    """
    import vllm.envs as envs
    from vllm.multimodal.media import MediaWithBytes

    budget = budget or Budget()
    most = budget.memory // _BYTES_PER_PIXEL
    if envs.VLLM_MAX_IMAGE_PIXELS > 0:
        most = min(most, envs.VLLM_MAX_IMAGE_PIXELS)
    image, answer = POOL.decode("image", data, budget, {"max_pixels": most}, partial(_collected_image, most))
    if answer["is_wide"]:
        return image
    # vLLM's key of an image in its cache is a digest of this, which is faster than one of the pixels.
    how = {"image_mode": "RGB", "rgba_background_color": (255, 255, 255)} if answer["is_converted"] else None
    return MediaWithBytes(image, data, how)


def audio_from_bytes(data: bytes, budget: Budget | None = None) -> Any:
    """Return the samples of a sound file (float32, one channel), and their rate in 1/s.

    Args:
        data: the file.
        budget: what it may cost.

    Raises:
        MediaError: the file is no sound, is broken or too long, or takes more than its budget.
    """
    import numpy as np
    import vllm.envs as envs

    if len(data) > envs.VLLM_MAX_AUDIO_CLIP_FILESIZE_MB << 20:
        raise MediaError(
            "invalid_media",
            f"the sound has {len(data)} bytes, more than {envs.VLLM_MAX_AUDIO_CLIP_FILESIZE_MB} MiB: make it smaller, "
            "or raise the environment variable VLLM_MAX_AUDIO_CLIP_FILESIZE_MB",
        )
    if importlib.util.find_spec("soundfile") is None:
        raise MediaError("invalid_media", "a sound needs soundfile: pip install 'daft-vllm[media]'")
    limits = {"max_seconds": envs.VLLM_MAX_AUDIO_DECODE_DURATION_S, "max_bytes": envs.VLLM_MAX_AUDIO_DECODE_BYTES}
    samples, answer = POOL.decode("sound", data, budget or Budget(), limits, _collected_bytes)
    return np.frombuffer(samples, np.float32), answer["rate"]


def pdf_pages(data: bytes, budget: Budget) -> int:
    """Return how many pages a PDF file has.

    Raises:
        MediaError: it is broken, takes more than its budget, or ``pypdfium2`` is missing.
    """
    if importlib.util.find_spec("pypdfium2") is None:
        raise MediaError("invalid_media", "a PDF needs pypdfium2: pip install 'daft-vllm[media]'")
    pages: int = POOL.decode("pdf pages", data, budget, {}, _collected_bytes)[1]["pages"]
    return pages


def pdf_image(data: bytes, page: int, budget: Budget) -> Any:
    """Return the image of one page, counted from 0. Raises: as ``pdf_pages``."""
    return POOL.decode("pdf image", data, budget, {"page": page}, partial(_collected_image, LONGEST_SIDE**2))[0]


def pdf_text(data: bytes, max_bytes: int, budget: Budget) -> str:
    """Return the text of all pages. Raises: as ``pdf_pages``, and if it is longer than ``max_bytes``."""
    text, _ = POOL.decode("pdf text", data, budget, {"max_bytes": max_bytes}, _collected_bytes)
    return text.decode("utf-8")


def _collected_image(most: int, answer: dict[str, Any], parts: Iterator[memoryview]) -> tuple[Any, dict[str, Any]]:
    """Return the image in an answer. The decoder has read a stranger's file, so nothing is taken on trust."""
    from PIL import Image

    width, height = answer["size"]
    if min(width, height) < 1 or width * height > most:
        raise ValueError(f"the decoder says that the image has {width} x {height} pixels")
    image, top = None, 0
    for part in parts:
        lines = len(part) // (len(PIXELS) * width)
        strip = Image.frombytes("RGB", (width, lines), part, "raw", PIXELS)
        if lines == height:
            image = strip
        else:
            image = image or Image.new("RGB", (width, height))
            image.paste(strip, (0, top))
        top += lines
    if top != height:
        raise ValueError(f"the decoder sent {top} of {height} lines")
    return image, answer


def _collected_bytes(answer: dict[str, Any], parts: Iterator[memoryview]) -> tuple[bytes, dict[str, Any]]:
    return joined(parts), answer
