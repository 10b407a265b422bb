"""Reads PDF files. Runs in a decoder process."""

from __future__ import annotations

from typing import Any

from daft_vllm.engine.media.arrays import image_from_array
from daft_vllm.engine.media.exchange import Parts, parts_of
from daft_vllm.engine.media.images import strips

LONGEST_SIDE = 1536
"""Pixels of a page's longer side. On A4 that is 130 per inch, enough to read 8-point print."""


def count_pages(data: bytes) -> tuple[dict[str, Any], Parts]:
    """Return how many pages a document has."""
    return {"pages": len(_opened(data))}, parts_of(b"")


def draw_page(data: bytes, page: int) -> tuple[dict[str, Any], Parts]:
    """Return the size of a page's image, and its pixels in RGB."""
    sheet = _opened(data)[page]
    bitmap = sheet.render(scale=LONGEST_SIDE / max(sheet.get_size()), rev_byteorder=True)
    image = image_from_array(bitmap.to_numpy())
    return {"size": image.size}, strips(image)


def read_text(data: bytes, max_bytes: int) -> tuple[dict[str, Any], Parts]:
    """Return the text of all pages, with an empty line between them.

    Raises:
        ValueError: it has more than ``max_bytes`` bytes in UTF-8.
    """
    texts: list[bytes] = []
    for page in _opened(data):
        texts.append(page.get_textpage().get_text_bounded().encode("utf-8", "replace"))
        if sum(map(len, texts)) > max_bytes:
            raise ValueError(f"its text has more than {max_bytes} bytes")
    return {}, parts_of(b"\n\n".join(texts))


def _opened(data: bytes) -> Any:
    import pypdfium2

    return pypdfium2.PdfDocument(data)
