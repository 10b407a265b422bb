"""Images and sounds as vLLM takes them."""

from __future__ import annotations

import io
from typing import Any

from daft_vllm.engine.requests.outcome import ErrorCode, ErrorValue

_SIXTEEN_BITS = 257  # 65535 / 255


class MediaError(Exception):
    """A medium can't be used. ``error`` says why, as the error of its row."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(code, message)
        self.error = ErrorValue(code, message)


def image_from_bytes(data: bytes) -> Any:
    """Return the image in a file, as vLLM's own front end does: upright, in RGB, with white where it is transparent.

    One thing is different: an image with 16 bits per channel keeps its greys. Pillow's conversion makes all values
    above 255 white.

    Raises:
        MediaError: the file is no image, is broken or too large, or is of a kind that isn't read from untrusted sources
            (EPS, WMF).
    """
    from PIL import UnidentifiedImageError
    from vllm.multimodal.image import normalize_image, open_image
    from vllm.multimodal.media import ImageMediaIO

    try:
        image = open_image(io.BytesIO(data))
        if image.mode.startswith(("I", "F")):
            import numpy as np

            pixels = np.asarray(normalize_image(image))
            return image_from_array(pixels if image.mode == "F" else pixels.clip(0, 65535).astype("uint16"))
        return ImageMediaIO().load_bytes(data)
    except Exception as e:
        why = "no image of a known format" if isinstance(e, UnidentifiedImageError) else e
        raise MediaError("invalid_media", f"the image can't be read ({len(data)} bytes): {why}") from e


def image_from_array(pixels: Any) -> Any:
    """Return the image in an array of shape (height, width) or (height, width, channels).

    Its values are uint8, uint16, or float32 from 0 to 1. Its channels are grey, grey and alpha, RGB or RGBA.

    Raises:
        MediaError: the array has another shape or type.
    """
    import numpy as np
    from PIL import Image
    from vllm.multimodal.image import convert_image_mode

    pixels = np.asarray(pixels)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    channels = pixels.shape[2] if pixels.ndim == 3 else 1
    if pixels.ndim not in (2, 3) or not 1 <= channels <= 4 or not pixels.size:
        raise MediaError("invalid_media", f"an image is an array of height x width x channels, got {pixels.shape}")
    if pixels.dtype == np.uint16:
        pixels = (pixels // _SIXTEEN_BITS).astype(np.uint8)
    elif pixels.dtype.kind == "f":
        pixels = (np.nan_to_num(pixels).clip(0, 1) * 255).round().astype(np.uint8)
    elif pixels.dtype != np.uint8:
        raise MediaError("invalid_media", f"an image's array is uint8, uint16 or float32, got {pixels.dtype}")
    return convert_image_mode(Image.fromarray(np.ascontiguousarray(pixels)), "RGB")


def audio_from_bytes(data: bytes) -> Any:
    """Return the samples of a sound file, and their rate in 1/s.

    Raises:
        MediaError: the file is no sound, or is broken.
    """
    from vllm.multimodal.media import AudioMediaIO

    try:
        return AudioMediaIO().load_bytes(data)
    except Exception as e:
        raise MediaError("invalid_media", f"the sound can't be read ({len(data)} bytes): {e}") from e
