"""Documents become text within a fence, or pages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import daft
import pytest
from daft import Series

from daft_vllm import FileAccess
from daft_vllm.engine.requests.content import Content, Conversation, Media
from daft_vllm.engine.requests.outcome import Outcome
from daft_vllm.errors import OptionError
from daft_vllm.udf.columns.cells import CellReader, _file_name
from daft_vllm.udf.columns.parts import PartKind

pytest.importorskip("pypdfium2")


def pdf(pages: int) -> bytes:
    """Return a PDF whose pages say their number."""
    kids = " ".join(f"{3 + 2 * i} 0 R" for i in range(pages))
    objects = ["<< /Type /Catalog /Pages 2 0 R >>", f"<< /Type /Pages /Kids [{kids}] /Count {pages} >>"]
    for i in range(pages):
        text = f"BT /F1 24 Tf 20 50 Td (This is page {i + 1}.) Tj ET"
        font = "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 300 100] /Contents {4 + 2 * i} 0 R "
            f"/Resources << /Font << /F1 {font} >> >> >>"
        )
        objects.append(f"<< /Length {len(text)} >>\nstream\n{text}\nendstream")
    out, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += f"{number} 0 obj\n{body}\nendobj\n".encode()
    start = len(out)
    out += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n".encode()
    out += "".join(f"{place:010} 00000 n \n" for place in places).encode()
    return out + f"trailer << /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF".encode()


def contents(
    values: Sequence[object], kind: PartKind = "document", *, images: bool = False, access: FileAccess | None = None
) -> list[tuple[Content, ...] | str | None]:
    """Return each row's parts; the text of its error for a row that can't be asked."""
    reader = CellReader([kind], [], access or FileAccess(), lambda: images)
    found: list[tuple[Content, ...] | str | None] = []
    for prompt in reader.prompts([Series.from_pylist(list(values), name="d")]):
        assert not isinstance(prompt, Conversation)
        prompt = (prompt,) if isinstance(prompt, str) else prompt
        found.append(str(prompt.error) if isinstance(prompt, Outcome) else prompt)
    return found


def test_text_stands_in_a_fence_that_it_can_not_close() -> None:
    for data, mime in ((b"# Title\n", "text/plain"), (b"<!DOCTYPE html><p>x", "text/html"), (b"", "text/plain")):
        ((text,),) = contents([data])
        assert text == f"document ({mime}):\n```\n{data.decode()}\n```"
    ((text,),) = contents(["a\n````\nb".encode("utf-16")])
    assert text == "document (text/plain):\n`````\na\n````\nb\n`````"


def test_files_are_told_by_name_and_type(tmp_path: Path) -> None:
    for name, data in (("a.md", b"# A"), ("b.csv", b"x,y\n1,2"), ("c.json", b"{}"), ("noname", b"plain")):
        (tmp_path / name).write_bytes(data)
    access = FileAccess(folders=tmp_path)
    paths = [str(tmp_path / name) for name in ("a.md", "b.csv", "c.json", "noname", "gone.txt")]
    *rows, gone = contents(paths, access=access)
    assert [row[0].split(":\n")[0] for row in rows if row and isinstance(row[0], str)] == [
        "a.md (text/markdown)",
        "b.csv (text/csv)",
        "c.json (application/json)",
        "noname (text/plain)",
    ]
    assert isinstance(gone, str)
    assert gone.startswith("unavailable_media")
    files = [daft.File(path) for path in paths[:3]]
    assert contents(files, "auto", access=access) == rows[:3]


def test_pdf_pages_are_text_or_images() -> None:
    ((text,),) = contents([pdf(2)])
    assert isinstance(text, str)
    assert text.startswith("document (application/pdf, 2 pages):\n```\nThis is page 1.")
    assert "This is page 2." in text
    ((head, *pages),) = contents([pdf(3)], images=True)
    assert head == "document (application/pdf, 3 pages):"
    assert all(isinstance(page, Media) and page.kind == "image" for page in pages)
    assert len({page.digest for page in pages if isinstance(page, Media)}) == 3
    image = pages[1].load() if isinstance(pages[1], Media) else None
    assert image.size == (1536, 512)
    assert len(set(image.getdata())) > 1
    assert contents([pdf(2)], "auto") == contents([pdf(2)])


def test_conversations_of_any_shape_are_read_or_refused() -> None:
    reader = CellReader(["auto"], [], FileAccess(), lambda: False)

    def read(*rows: object) -> list[object]:
        return list(reader.prompts([Series.from_pylist(list(rows), name="talk", dtype=daft.DataType.python())]))

    system = {"role": "system", "content": "Be brief."}
    mixed = [system, {"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    single = [{"role": "user", "content": {"type": "text", "text": "hi"}}]
    wrong = [{"role": "user", "content": 3}]
    unnamed = [{"role": None, "content": "x"}]
    one, two, three, four, five = read(mixed, single, wrong, unnamed, "text")
    assert isinstance(one, Conversation)
    assert [message.content for message in one.messages] == [("Be brief.",), ("hi",)]
    assert isinstance(two, Conversation)
    assert two.messages[0].content == ("hi",)
    for refused in (three, four, five):
        assert isinstance(refused, Outcome)
        assert refused.error is not None
        assert refused.error.code == "invalid_prompt"


def test_names_tell_nothing_but_the_name() -> None:
    for url, name in (
        ("https://host/a/b%20c.txt?X-Signature=secret", "b c.txt"),
        ("data:text/plain;base64,aGVsbG8=", "document"),
        ("/data/x\ny.md", "xy.md"),
        ("s3://bucket/" + "a" * 300, "a" * 100),
    ):
        assert _file_name(url) == name


def test_what_is_no_document_is_named() -> None:
    rows = contents([b"PK\x03\x04", b"\xff\xfa\x00text", pdf(1)[:100], None])
    assert [str(row).split(":")[0] for row in rows] == ["invalid_media"] * 3 + ["null_prompt"]
    assert "application/zip" in str(rows[0])
    assert "no text in UTF-8" in str(rows[1])
    assert "can't be read as PDF" in str(rows[2])
    (row,) = contents([pdf(3)], access=FileAccess(max_pages=2))
    assert "has 3 pages" in str(row)
    with pytest.raises(OptionError, match="max_pages"):
        FileAccess(max_pages=0)
    assert "application/zip" in str(contents([b"PK\x03\x04"], "auto")[0])
