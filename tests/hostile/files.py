"""Files that try to take time and memory: each is small, and expensive to read."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
from PIL import Image


def png(width: int, height: int, *, bits: int = 8, colour: int = 0, extra: bytes = b"") -> bytes:
    """Return a black PNG. ``colour``: 0 grey, 2 RGB, 3 palette, 6 RGBA. ``extra``: chunks after the header."""
    channels = {0: 1, 2: 3, 3: 1, 6: 4}[colour]
    line = bytes(1 + (width * bits * channels + 7) // 8)
    packer = zlib.compressobj(9)
    body = b"".join(packer.compress(line) for _ in range(height)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    palette = chunk(b"PLTE", bytes(3)) if colour == 3 else b""
    return b"".join(
        (b"\x89PNG\r\n\x1a\n", chunk(b"IHDR", header), palette, extra, chunk(b"IDAT", body), chunk(b"IEND", b""))
    )


def chunk(name: bytes, body: bytes) -> bytes:
    """Return a chunk of a PNG file."""
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def text_bomb_png() -> bytes:
    """Return a PNG with a compressed comment of 300 MB."""
    return png(8, 8, extra=chunk(b"zTXt", b"x\0\0" + zlib.compress(bytes(300 << 20), 9)))


def tiff(width: int, height: int, bits: int, sample_format: int) -> bytes:
    """Return an uncompressed-looking TIFF whose one strip is deflated zeros. ``sample_format``: 1 int, 3 float."""
    packer = zlib.compressobj(9)
    line = bytes(width * bits // 8)
    body = b"".join(packer.compress(line) for _ in range(height)) + packer.flush()
    tags = [
        (256, 4, width),
        (257, 4, height),
        (258, 3, bits),
        (259, 3, 8),
        (262, 3, 1),
        (273, 4, 8),
        (277, 3, 1),
        (278, 4, height),
        (279, 4, len(body)),
        (339, 3, sample_format),
    ]
    directory = struct.pack("<H", len(tags))
    for tag, kind, value in tags:
        directory += struct.pack("<HHII", tag, kind, 1, value)
    return b"II*\0" + struct.pack("<I", 8 + len(body)) + body + directory + bytes(4)


def many_scans_jpeg(side: int, scans: int) -> bytes:
    """Return a progressive JPEG whose last scan comes many times. Each takes the decoder through all blocks again."""
    stream = io.BytesIO()
    Image.fromarray(np.zeros((side, side), np.uint8)).save(stream, "JPEG", progressive=True, quality=50)
    data = stream.getvalue()
    at = data.rindex(b"\xff\xda")
    scan = data[at:-2]
    return data[:at] + scan * scans + b"\xff\xd9"


def pdf(objects: list[bytes]) -> bytes:
    """Return a PDF file of these objects, of which the first is the catalog."""
    out, places = bytearray(b"%PDF-1.7\n"), []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%b\nendobj\n" % (number, body)
    start = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    for place in places:
        out += b"%010d 00000 n \n" % place
    out += b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, start)
    return bytes(out)


def stream(body: bytes, entries: bytes = b"", *, deflate: bool = False) -> bytes:
    """Return a stream object of a PDF."""
    if deflate:
        body, entries = zlib.compress(body, 9), entries + b" /Filter /FlateDecode"
    return b"<< %b /Length %d >>\nstream\n%b\nendstream" % (entries, len(body), body)


def page_pdf(
    content: bytes, resources: bytes = b"", more: list[bytes] | None = None, box: bytes = b"0 0 612 792"
) -> bytes:
    """Return a PDF of one page. The objects of ``more`` have the numbers from 5 on."""
    return pdf(
        [
            b"<< /Type /Catalog /Pages 2 0 R >>",
            b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
            b"<< /Type /Page /Parent 2 0 R /MediaBox [%b] /Contents 4 0 R /Resources << %b >> >>" % (box, resources),
            content,
            *(more or []),
        ]
    )


def nested_forms_pdf(levels: int = 8, times: int = 10) -> bytes:
    """Return a PDF of 2 KB that draws ``times ** levels`` squares."""
    forms = []
    for level in range(levels):
        inner = b"0 0 1 1 re f" if level == levels - 1 else b"/F Do " * times
        font = b"" if level == levels - 1 else b"/XObject << /F %d 0 R >>" % (6 + level)
        forms.append(stream(inner, b"/Type /XObject /Subtype /Form /BBox [0 0 9 9] /Resources << %b >>" % font))
    return page_pdf(stream(b"/F Do " * times), b"/XObject << /F 5 0 R >>", forms)


def long_text_pdf(number: int = 50_000) -> bytes:
    """Return a PDF of some KB whose page has very many lines of text."""
    text = b"BT /T 9 Tf 10 TL 0 %d Td " % (number * 10) + b"(word and more words) ' " * number + b" ET"
    font = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
    return page_pdf(stream(text, deflate=True), b"/Font << /T 5 0 R >>", [font], b"0 0 612 %d" % (number * 10))


def large_image_pdf(side: int = 60_000) -> bytes:
    """Return a PDF with an image that has far more pixels than the page."""
    packer = zlib.compressobj(9)
    body = b"".join(packer.compress(bytes(side)) for _ in range(side)) + packer.flush()
    entries = b"/Type /XObject /Subtype /Image /Width %d /Height %d /ColorSpace /DeviceGray /BitsPerComponent 8" % (
        side,
        side,
    )
    image = stream(body, entries + b" /Filter /FlateDecode")
    return page_pdf(stream(b"612 0 0 792 0 0 cm /I Do"), b"/XObject << /I 5 0 R >>", [image])


def endless_pages_pdf() -> bytes:
    """Return a PDF whose tree of pages contains itself, and says that it has a thousand million pages."""
    return pdf([b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Kids [2 0 R 2 0 R] /Count 1000000000 >>"])


def many_pages_pdf(number: int) -> bytes:
    """Return a PDF with that many empty pages."""
    kids = b" ".join(b"%d 0 R" % (3 + i) for i in range(number))
    page = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] >>"
    pages = b"<< /Type /Pages /Kids [%b] /Count %d >>" % (kids, number)
    return pdf([b"<< /Type /Catalog /Pages 2 0 R >>", pages, *[page] * number])


def silence(seconds: int, channels: int = 1, rate: int = 8000, kind: str = "FLAC") -> bytes:
    """Return a sound file of silence."""
    import soundfile

    out = io.BytesIO()
    soundfile.write(out, np.zeros((seconds * rate, channels), np.int16), rate, format=kind)
    return out.getvalue()


def lying_wav() -> bytes:
    """Return a WAV file that says it has 4 GB of samples."""
    head = b"RIFF\xff\xff\xff\xffWAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 8000, 16000, 2, 16)
    return head + b"data\xf0\xff\xff\xff" + bytes(100)
