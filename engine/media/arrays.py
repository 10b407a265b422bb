"""Images that are arrays already."""

from __future__ import annotations

import functools
import importlib.util
import sys
from typing import Any

from daft_vllm.engine.requests.media import MediaError
from daft_vllm.engine.setup.sources import package_folder

_SIXTEEN_BITS = 257  # 65535 / 255
_OVERSHOOT = 0.5
"""How far an image's floats may be outside of 0 to 1. Filters that sharpen or resize overshoot a little."""


@functools.cache
def vllm_images() -> Any:
    """Return vLLM's module of functions for images.

    A decoder process loads that file alone: all of vLLM would take it ten seconds and 800 MB, and the file needs Pillow
    only.
    """
    name = "vllm.multimodal.image"
    if name in sys.modules:
        return sys.modules[name]
    folder = package_folder("vllm")
    spec = importlib.util.spec_from_file_location(name, folder / "multimodal" / "image.py") if folder else None
    if spec is None or spec.loader is None:
        raise ImportError("vllm is not installed")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def image_from_array(pixels: Any) -> Any:
    """Return the image in an array of shape (height, width) or (height, width, channels).

    Its values are uint8, uint16, or floats from 0 to 1. Its channels are grey, grey and alpha, RGB or RGBA.

    Raises:
        MediaError: the array has another shape or type, or floats that are far outside of 0 to 1.
    """
    import numpy as np
    from PIL import Image

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
    return vllm_images().convert_image_mode(Image.fromarray(np.ascontiguousarray(pixels)), "RGB")
