"""A table whose rows hold a picture, a document, a place and a text; in hostile rows one of them is hostile."""

from __future__ import annotations

import io
import itertools
import os
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.hostile import files
from tests.hostile.servers import SLOW, HostileServer

Row = dict[str, Any]
QUICK_PLACES = ("round", "busy?wait=100000", "endless-header", "says-too-much", "bomb", "old")


def pictures(number: int, side: int = 96) -> Iterator[bytes]:
    """Return different JPEG files."""
    draw = np.random.default_rng(7)
    for _ in range(number):
        stream = io.BytesIO()
        pixels = draw.integers(0, 255, (side // 8, side // 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((side, side)).save(stream, "JPEG")
        yield stream.getvalue()


def document(number: int) -> bytes:
    """Return a PDF of one page."""
    font = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
    text = files.stream(b"BT /T 24 Tf 72 700 Td (Page %d) Tj ET" % number)
    return files.page_pdf(text, b"/Font << /T 5 0 R >>", [font])


def good_rows(number: int, folder: Path) -> list[Row]:
    """Return rows, of which nothing is hostile."""
    rows = []
    for i, picture in enumerate(pictures(number)):
        place = folder / f"{i % 50}.jpg"
        if not place.exists():
            place.write_bytes(picture)
        rows.append({"picture": picture, "document": document(i), "place": str(place), "text": f"Row {i}"})
    return rows


def hostile_parts(server: HostileServer, folder: Path) -> dict[str, tuple[str, Any]]:
    """Return, by name, a column and what is hostile in it. Each must become its row's error."""
    for name, make in LINKS.items():
        make(folder / name)
    parts: dict[str, tuple[str, Any]] = {name: ("picture", make()) for name, make in PICTURES.items()}
    parts |= {name: ("document", make()) for name, make in DOCUMENTS.items()}
    parts |= {f"server {path}": ("place", server.url(path)) for path in (*SLOW, *QUICK_PLACES)}
    parts |= {f"file {name}": ("place", str(folder / name)) for name in LINKS}
    parts |= {f"place {place[:30]}": ("place", place) for place in PLACES}
    parts |= {name: ("text", text) for name, text in TEXTS.items()}
    return parts


def mixed_rows(good: list[Row], parts: Mapping[str, tuple[str, Any]], hostile: int) -> tuple[list[Row], dict[int, str]]:
    """Return good rows of which ``hostile`` have a hostile part, and the names of those parts by row number.

    No two hostile rows are the same, so none is answered for the other.
    """
    places = sorted(random.Random(11).sample(range(len(good)), hostile))
    rows, names = [dict(row) for row in good], {}
    for number, (i, (name, (column, value))) in enumerate(zip(places, itertools.cycle(parts.items()))):
        if number >= len(parts):
            value = value + bytes([number % 251]) if isinstance(value, bytes) else _varied(value, number)
        rows[i][column], names[i] = value, name
    return rows, names


def _varied(text: str, number: int) -> str:
    return f"{text}{'&' if '?' in text else '?'}n={number}" if text.startswith("http") else text


LINKS: dict[str, Callable[[Path], Any]] = {
    "fifo.png": os.mkfifo,
    "zero.png": lambda path: path.symlink_to("/dev/zero"),
    "passwd.png": lambda path: path.symlink_to("/etc/passwd"),
    "folder.png": Path.mkdir,
}
PICTURES: dict[str, Callable[[], bytes]] = {
    "a picture of 16 bits": lambda: files.png(11_000, 10_000, bits=16),
    "a picture of floats": lambda: files.tiff(5000, 5000, 32, 3),
    "a picture of integers": lambda: files.tiff(9000, 9000, 32, 1),
    "a picture of one bit": lambda: files.png(20_000, 20_000, bits=1),
    "a picture with a comment": files.text_bomb_png,
    "a picture with many scans": lambda: files.many_scans_jpeg(3000, 3000),
    "half a picture": lambda: next(pictures(1))[:400],
    "PostScript": lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) run\n",
    "no picture": lambda: bytes(1000),
}
DOCUMENTS: dict[str, Callable[[], bytes]] = {
    "a document of nested forms": files.nested_forms_pdf,
    "a document without end": files.endless_pages_pdf,
    "a document of many pages": lambda: files.many_pages_pdf(1000),
    "half a document": lambda: document(1)[:200],
}
PLACES = (
    "/etc/passwd",
    "/proc/self/environ",
    "http://169.254.169.254/latest/meta-data/",
    "file://server/share",
    "gopher://127.0.0.1/",
    "http://user:password@127.0.0.1/",
    "data:image/png;base64,AAAA",
    "x" * 5000,
)
TEXTS = {"a long text": "word " * 400_000, "a text without spaces": "a" * 1_000_000}
