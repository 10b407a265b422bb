"""Decodes image files. Runs in a decoder process."""

from __future__ import annotations

import io
from typing import Any

from daft_vllm.engine.media.arrays import image_from_array, vllm_images
from daft_vllm.engine.media.exchange import PART_BYTES, Parts
from daft_vllm.engine.requests.media import MediaError

_PHOTOMETRIC, _SAMPLE_FORMAT, _LEAST, _GREATEST = 262, 339, 340, 341
_ZERO_IS_WHITE, _UNSIGNED = 0, 1
"""Tags of TIFF 6.0, and values of the first two."""

PIXELS = "RGBX"
"""How pixels are sent: as Pillow has them in memory, so that neither side has to move single bytes."""


def decode_image(data: bytes, max_pixels: int) -> tuple[dict[str, Any], Parts]:
    """Return an image's size and its pixels in RGB, as vLLM's own front end makes them.

    It is upright, with white where it is transparent. One thing is different from vLLM: an image whose greys have more
    than 8 bits keeps them, see ``_greys``. Pillow's conversion makes all values above 255 white, and those of an image
    from 0 to 1 black.

    Args:
        data: the file.
        max_pixels: the most pixels that an image may have. Checked before a pixel is decoded, in every mode.

    Raises:
        MediaError: the file is no image, is broken or too large, or is of a kind that isn't read from untrusted sources
            (EPS, WMF).
    """
    import PIL.Image

    vllm = vllm_images()
    PIL.Image.MAX_IMAGE_PIXELS = None  # the check below says more
    try:
        image = vllm.open_image(io.BytesIO(data))
        width, height = image.size
        if width * height > max_pixels:
            raise MediaError(
                "invalid_media",
                f"the image has {width} x {height} pixels, more than {max_pixels}: make it smaller, or raise "
                "files=FileAccess(max_memory=...) and the environment variable VLLM_MAX_IMAGE_PIXELS",
            )
        PIL.Image.MAX_IMAGE_PIXELS = max_pixels  # for images inside of images, in an ICNS file for example
        is_wide = image.mode.startswith(("I", "F"))
        upright = vllm.normalize_image(image)
        upright.load()
        rgb = image_from_array(_greys(image, upright)) if is_wide else vllm.convert_image_mode(upright, "RGB")
    except (MediaError, MemoryError):
        raise
    except Exception as e:
        why = "no image of a known format" if isinstance(e, PIL.UnidentifiedImageError) else e
        raise MediaError("invalid_media", f"the image can't be read ({len(data)} bytes): {why}") from e
    return {"size": rgb.size, "is_wide": is_wide, "is_converted": rgb is not upright}, strips(rgb)


def strips(image: Any) -> Parts:
    """Return an image's pixels in strips of whole lines, from the top."""
    width, height = image.size
    lines = max(1, PART_BYTES // (len(PIXELS) * width))
    for top in range(0, height, lines):
        strip = image.crop((0, top, width, min(height, top + lines))) if lines < height else image
        yield strip.tobytes("raw", PIXELS), top + lines >= height


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
