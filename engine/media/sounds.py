"""Decodes sound files. Runs in a decoder process."""

from __future__ import annotations

import importlib.util
import io
from typing import Any

from daft_vllm.engine.media.exchange import Parts, parts_of
from daft_vllm.engine.requests.media import MediaError


def decode_sound(data: bytes, max_seconds: float, max_bytes: int) -> tuple[dict[str, Any], Parts]:
    """Return a sound's rate in 1/s, and its samples in float32, one channel: the mean of the file's channels.

    libsndfile reads the file. Where it knows the format too little, and PyAV or torchcodec is installed, vLLM's own
    reader takes it. That one needs all of vLLM, so a process that meets such a file takes ten seconds longer, once.

    Args:
        data: the file.
        max_seconds: the longest sound.
        max_bytes: the most bytes that its samples may take, all channels.

    Raises:
        MediaError: the file is no sound, is broken, or is too long.
    """
    import soundfile

    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            rate, frames, channels = file.samplerate, file.frames, file.channels
            if frames / rate > max_seconds or frames * channels * 4 > max_bytes:
                raise MediaError(
                    "invalid_media",
                    f"the sound has {frames / rate:.0f} seconds on {channels} channel(s), more than "
                    f"{max_seconds:g} seconds or {max_bytes >> 20} MiB: cut it, or raise the environment variables "
                    "VLLM_MAX_AUDIO_DECODE_DURATION_S and VLLM_MAX_AUDIO_DECODE_BYTES",
                )
            samples = file.read(dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as e:
        if not any(map(importlib.util.find_spec, ("av", "torchcodec"))):
            raise MediaError("invalid_media", f"the sound can't be read ({len(data)} bytes): {e}") from e
        return _by_vllm(data)
    samples = samples[:, 0] if channels == 1 else samples.mean(axis=1, dtype="float32")
    return {"rate": rate}, parts_of(samples.tobytes())


def _by_vllm(data: bytes) -> tuple[dict[str, Any], Parts]:
    from vllm.multimodal.media import AudioMediaIO

    try:
        samples, rate = AudioMediaIO().load_bytes(data)
    except MemoryError:
        raise
    except Exception as e:
        raise MediaError("invalid_media", f"the sound can't be read ({len(data)} bytes): {e}") from e
    return {"rate": rate}, parts_of(samples.astype("float32").tobytes())
