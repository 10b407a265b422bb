"""Images and sounds as vLLM takes them."""

from __future__ import annotations

import io
from typing import Any

from daft_vllm.engine.requests.outcome import ErrorCode, ErrorValue

_SIXTEEN_BITS = 257  # 65535 / 255
_OVERSHOOT = 0.5
"""How far an image's floats may be outside of 0 to 1. Filters that sharpen or resize overshoot a little."""
_PHOTOMETRIC, _SAMPLE_FORMAT, _LEAST, _GREATEST = 262, 339, 340, 341
_ZERO_IS_WHITE, _UNSIGNED = 0, 1
"""Tags of TIFF 6.0, and values of the first two."""


class MediaError(Exception):
    """A medium can't be used. ``error`` says why, as the error of its row."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(code, message)
        self.error = ErrorValue(code, message)


def image_from_bytes(data: bytes) -> Any:
    """Return the image in a file, as vLLM's own front end does: upright, in RGB, with white where it is transparent.

    One thing is different: an image whose greys have more than 8 bits keeps them, see ``_greys``. Pillow's conversion
    makes all values above 255 white, and those of an image from 0 to 1 black.

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
            return image_from_array(_greys(image, normalize_image(image)))
        return ImageMediaIO().load_bytes(data)
    except Exception as e:
        why = "no image of a known format" if isinstance(e, UnidentifiedImageError) else e
        raise MediaError("invalid_media", f"the image can't be read ({len(data)} bytes): {why}") from e


def _greys(image: Any, upright: Any) -> Any:
    """Return the greys of an image with more than 8 bits, as an array of numbers from 0 (black) to 1 (white).

    Files with 16 bits use all of them. Files with 32 bits, or with floats, don't say which values are black and white,
    except some TIFFs. The first of these ranges that holds all values is taken: the file's own, 0 to 1 (floats only), 0
    to 255, 0 to 65,535, and at last from the least value to the greatest.

    Args:
        image: as Pillow opened the file.
        upright: the same image, turned as the file says.
    """
    import numpy as np

    pixels = np.asarray(upright)
    tags = getattr(image, "tag_v2", {})
    if pixels.dtype.kind == "i" and _SAMPLE_FORMAT in tags and tags[_SAMPLE_FORMAT] == (_UNSIGNED,):
        pixels = pixels.astype(np.int64) % 2**32
    values = np.nan_to_num(pixels.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    low, high = float(values.min()), float(values.max())
    ranges = [(0.0, 65535.0), (low, high)]
    if not image.mode.startswith("I;16"):
        ranges[:0] = [(0.0, 1.0), (0.0, 255.0)] if image.mode == "F" else [(0.0, 255.0)]
        if _LEAST in tags and _GREATEST in tags:
            ranges.insert(0, (float(np.min(tags[_LEAST])), float(np.max(tags[_GREATEST]))))
    black, white = next((a, b) for a, b in ranges if a <= low and high <= b)
    greys = (values - black) / ((white - black) or 1.0)
    return (1.0 - greys if tags.get(_PHOTOMETRIC) == _ZERO_IS_WHITE else greys).astype(np.float32)


def image_from_array(pixels: Any) -> Any:
    """Return the image in an array of shape (height, width) or (height, width, channels).

    Its values are uint8, uint16, or floats from 0 to 1. Its channels are grey, grey and alpha, RGB or RGBA.

    Raises:
        MediaError: the array has another shape or type, or floats that are far outside of 0 to 1.
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
        pixels = np.nan_to_num(pixels)
        if pixels.min() < -_OVERSHOOT or pixels.max() > 1 + _OVERSHOOT:
            span = f"{pixels.min():g} to {pixels.max():g}"
            raise MediaError(
                "invalid_media", f"an image's floats are from 0 to 1, got {span}: divide by the white value"
            )
        pixels = (pixels.clip(0, 1) * 255).round().astype(np.uint8)
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
