"""Random cells: whatever is in one, reading it gives a value or the error of its row.

``FUZZ_SECONDS`` says how long each test tries (``make fuzz``); the same examples come first each time.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from daft import DataType, Series
from hypothesis import strategies as st
from PIL import Image

from daft_vllm import FileAccess
from daft_vllm.engine.media.decode import audio_from_bytes, image_from_bytes, pdf_image, pdf_pages, pdf_text
from daft_vllm.engine.media.limits import Budget
from daft_vllm.engine.requests.content import Conversation
from daft_vllm.engine.requests.media import MediaError
from daft_vllm.engine.requests.outcome import Outcome
from daft_vllm.udf.columns.cells import CellReader
from tests.hostile import files
from tests.hostile.table import document

SECONDS = float(os.environ.get("FUZZ_SECONDS", "10"))
_A_ROUND = 50
"""How many examples are tried before the clock is looked at."""


def fuzz(strategy: st.SearchStrategy[Any], check: Callable[[Any], None]) -> None:
    """Check examples until the time is over. One that fails is made as small as possible."""
    until, number = time.monotonic() + SECONDS, 0
    while not number or time.monotonic() < until:

        @hypothesis.seed(number)
        @hypothesis.settings(
            max_examples=_A_ROUND, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck)
        )
        @hypothesis.given(strategy)
        def tried(example: Any) -> None:
            check(example)

        tried()
        number += 1


def said(error: MediaError) -> None:
    """Check that an error is one short line."""
    code, message = error.error
    assert code in ("invalid_media", "unavailable_media", "invalid_prompt")
    assert len(message) < 700
    assert "\n" not in message


@cache
def _seeds() -> tuple[tuple[str, bytes], ...]:
    """Return good files of many formats."""
    pixels = np.random.default_rng(5).integers(0, 255, (9, 13, 3), np.uint8)
    found = []
    for name in ("PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP", "ICO", "PPM", "TGA", "JPEG2000", "DDS", "SGI", "PCX"):
        stream = io.BytesIO()
        Image.fromarray(pixels).resize((16, 16)).save(stream, name)
        found.append(("image", stream.getvalue()))
    found += [("sound", files.silence(1, kind=kind)) for kind in ("WAV", "FLAC", "OGG", "AIFF", "AU")]
    found += [("pdf", document(1)), ("pdf", files.many_pages_pdf(3)), ("pdf", files.nested_forms_pdf(2, 3))]
    return tuple(found)


@st.composite
def damaged_files(draw: st.DrawFn) -> tuple[str, bytes]:
    """Files with bytes replaced, cut out and put in twice, or the beginning of one with the end of another."""
    kind, data = draw(st.sampled_from(_seeds()))
    whole = bytearray(data)
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, max(0, min(len(whole), 400) - 1)))
        match draw(st.sampled_from(("set", "number", "cut", "twice", "other"))):
            case "set":
                whole[at : at + 1] = draw(st.binary(min_size=1, max_size=4))
            case "number":  # sizes and counts are written in two or four bytes
                size = draw(st.sampled_from((2, 4)))
                whole[at : at + size] = draw(st.sampled_from((b"\xff" * size, b"\x7f" * size, bytes(size))))
            case "cut":
                del whole[at : at + draw(st.integers(1, 200))]
            case "twice":
                whole[at:at] = whole[at : at + 300]
            case "other":
                whole[at:] = draw(st.sampled_from(_seeds()))[1][at:]
    return kind, bytes(whole)


def test_damaged_files() -> None:
    def check(example: tuple[str, bytes]) -> None:
        kind, data = example
        budget = Budget(5.0, 256 << 20)
        try:
            if kind == "image":
                assert image_from_bytes(data, budget).mode == "RGB"
            elif kind == "sound":
                assert audio_from_bytes(data, budget)[0].ndim == 1
            elif pdf_pages(data, budget):
                assert pdf_image(data, 0, budget).mode == "RGB"
                assert isinstance(pdf_text(data, 1 << 20, budget), str)
        except MediaError as e:
            said(e)

    fuzz(damaged_files(), check)


_PIECES = (
    *("http://", "https://", "file://", "file:///", "s3://", "data:", "ftp://", "//", "/", "\\", "~", "..", ".", "%2e"),
    *("127.0.0.1", "localhost", "[::1]", "0x7f000001", "2130706433", "user:pw@", "@", ":80", ":99999", "#", "?q=1"),
    *(
        "/etc/passwd",
        "/dev/zero",
        "/proc/self/mem",
        "good.png",
        "image/png;base64,",
        "AAAA",
        "\0",
        "\n",
        " ",
        "é",
        "\u202e",
    ),
)


def test_places(tmp_path: Path) -> None:
    (tmp_path / "good.png").write_bytes(b"good")
    access = FileAccess(folders=[tmp_path], max_seconds=2, max_bytes=1000)
    pieces = st.one_of(st.sampled_from((*_PIECES, str(tmp_path))), st.text(max_size=8))

    def check(place: str) -> None:
        try:
            data = access.read(place)
        except MediaError as e:
            said(e)
        else:
            assert data == b"good" or place.startswith("data:")

    fuzz(st.lists(pieces, max_size=6).map("".join), check)


_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.binary(max_size=20)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)),
    max_leaves=12,
)
_MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.one_of(st.sampled_from(("user", "assistant", "system", "tool", "")), _VALUES)},
        optional={
            "content": st.one_of(
                _VALUES,
                st.lists(
                    st.fixed_dictionaries(
                        {"type": st.sampled_from(("text", "image", "image_url", "input_audio", "video"))},
                        optional=dict.fromkeys(("text", "image", "image_url", "input_audio"), _VALUES),
                    ),
                    max_size=3,
                ),
            ),
            "tool_calls": _VALUES,
            "other": _VALUES,
        },
    ),
    max_size=4,
)


@pytest.mark.parametrize("kinds", [("auto",), ("image",), ("audio",), ("document",)])
def test_cells(kinds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells that are Python objects: any value, and conversations that are nearly right."""
    monkeypatch.setattr("tests.hostile.test_fuzz.SECONDS", SECONDS / 4)
    reader = CellReader(kinds, (), FileAccess(max_seconds=2), lambda: False, skip_blank=True)

    def check(values: list[Any]) -> None:
        column = Series.from_pylist(values, "cell", dtype=DataType.python())
        prompts = list(reader.prompts([column]))
        assert len(prompts) == len(values)
        for prompt in prompts:
            assert prompt is None or isinstance(prompt, (str, tuple, Conversation, Outcome))

    fuzz(st.lists(st.one_of(_VALUES, _MESSAGES) if kinds == ("auto",) else _VALUES, max_size=5), check)
