"""Documents in a prompt: text between fences, PDF pages as images or as text."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

from daft_vllm.engine.media.decode import pdf_image, pdf_pages, pdf_text
from daft_vllm.engine.media.limits import Budget
from daft_vllm.engine.requests.content import Content, Media
from daft_vllm.engine.requests.media import MediaError

PDF = "application/pdf"
TEXT_TYPES = ("application/json", "application/xml", "application/xhtml+xml", "application/x-ndjson")


def is_document(mime: str) -> bool:
    """Whether ``document_contents`` takes a file of this type."""
    return mime == PDF or mime.startswith("text/") or mime in TEXT_TYPES


def document_contents(
    name: str, mime: str, data: bytes, *, as_images: bool, max_pages: int, max_bytes: int, budget: Budget
) -> Iterator[Content]:
    """Return a document as parts of a prompt, with its name and type as a heading.

    Text is put between fences. They are longer than any fence in the text, so nothing in it can look like its end.

    Args:
        name: the file's name.
        mime: its MIME type.
        data: its content.
        as_images: True: PDF pages become images. False: only their text is used.
        max_pages: the most pages that a PDF may have.
        max_bytes: the most bytes that the text of a PDF may have.
        budget: what reading a PDF may cost, all pages together.

    Raises:
        MediaError: the document is broken, its text is neither UTF-8 nor UTF-16, or it is a PDF with too many pages or
            without ``pypdfium2`` to read it.
    """
    if mime != PDF:
        yield f"{name} ({mime}):\n{_fenced(_decoded(name, data))}"
        return
    with _as_row_error(name, data):
        pages = pdf_pages(data, budget)
    if pages > max_pages:
        raise MediaError(
            "invalid_media", f"{name} has {pages} pages, more than {max_pages}: raise files=FileAccess(max_pages=...)"
        )
    if as_images:
        yield f"{name} ({mime}, {pages} pages):"
        whole = hashlib.blake2b(data, digest_size=16).digest()
        for page in range(pages):
            digest = hashlib.blake2b(whole + page.to_bytes(4, "big"), digest_size=16).digest()
            yield Media("image", partial(_page_image, name, data, page, budget), digest, None)
    else:
        with _as_row_error(name, data):
            text = pdf_text(data, max_bytes, budget)
        yield f"{name} ({mime}, {pages} pages):\n{_fenced(text)}"


def _fenced(text: str) -> str:
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"


def _decoded(name: str, data: bytes) -> str:
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as e:
        raise MediaError(
            "invalid_media", f"{name} is no text in {encoding.removesuffix('-sig').upper()}: {e}"
        ) from None


@contextlib.contextmanager
def _as_row_error(name: str, data: bytes) -> Iterator[None]:
    try:
        yield
    except MediaError as e:
        code, why = e.error
        raise MediaError(code, f"{name} can't be read as PDF ({len(data)} bytes): {why}") from e


def _page_image(name: str, data: bytes, page: int, budget: Budget) -> Any:
    with _as_row_error(name, data):
        return pdf_image(data, page, budget)
