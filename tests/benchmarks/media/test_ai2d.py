"""The diagram workload: the layout of the real dataset, what is right, and the page about it."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from typer.testing import CliRunner

from benchmarks.media import ai2d, cauldron
from benchmarks.media.ai2d_report import Pass, Report, mcnemar, wilson, write_report
from benchmarks.media.diagrams import rows_of_diagrams
from daft_vllm.errors import OptionError

TAIL = "Answer with the letter."


def picture(colour: tuple[int, int, int], mode: str = "RGB", format: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (90, 60), colour).convert(mode).save(file, format=format)
    return file.getvalue()


def turn(user: str | None, assistant: str | None) -> dict[str, str | None]:
    return {"user": user, "assistant": assistant, "source": "AI2D"}


def real_layout() -> pa.Table:
    """20 images as The Cauldron's files hold them, with what they hold now and then."""
    rows: list[dict[str, Any]] = []
    for i in range(14):
        choices = ["ears", "nose", "mouth", "face", "chin"][: 2 + i % 4]
        listed = "\n".join(f"{'ABCDE'[n]}. {choice}" for n, choice in enumerate(choices))
        texts = [
            turn(f"Question: What is {part} in the diagram?\nChoices:\n{listed}\n{TAIL}", f"Answer: {'AB'[i % 2]}")
            for part in "QR"
        ]
        image = picture((i * 10, 99, 99), mode=("RGB", "L", "P")[i % 3], format=("PNG", "JPEG")[i % 3 == 0])
        rows.append({"images": [{"bytes": image, "path": None}], "texts": texts})
    good = {"bytes": picture((1, 2, 3)), "path": None}
    asked = turn(f"Question: Which?\nChoices:\nA. x\nB. y\n{TAIL}", "Answer: A")
    lecture = "Lecture: Choices:\nmatter. A. Is not a choice.\nQuestion: Which?\nChoices:\n(A) x\n(B) y\n(C) z\n" + TAIL
    rows += [
        {"images": [{"bytes": b"broken", "path": None}], "texts": [asked]},
        {"images": [{"bytes": None, "path": None}], "texts": [asked]},
        {"images": [good, good], "texts": [turn(lecture, "Answer: (C)")]},
        {"images": [good], "texts": [turn("Question: What is it?\n", "A cell."), turn(None, None)]},
        {"images": [good], "texts": [turn(f"Question: Which?\nChoices:\nA. x\nB. y\n{TAIL}", "Answer: D")]},
        {"images": [good], "texts": [turn(f"Question: Which?\nChoices:\nA. x\nC. y\n{TAIL}", "Answer: C")]},
    ]
    struct = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    said = pa.struct({"user": pa.string(), "assistant": pa.string(), "source": pa.string()})
    return pa.Table.from_pylist(rows, schema=pa.schema({"images": pa.list_(struct), "texts": pa.list_(said)}))


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Return a folder with a Parquet file of 20 rows."""
    folder = tmp_path / "ai2d"
    folder.mkdir()
    pq.write_table(real_layout(), folder / "train-00000-of-00001.parquet", row_group_size=7)
    return folder


def test_the_real_layout(dataset: Path) -> None:
    rows = cauldron.read(str(dataset), "ai2d").to_pylist()
    assert len(rows) == 14 * 2 + 7
    assert len({row["id"] for row in rows}) == len(rows)
    assert all((row["problem"] is None) == (row["letters"] is not None) for row in rows)
    assert Counter(row["letters"] for row in rows) == {"AB": 10, "ABC": 9, "ABCD": 6, "ABCDE": 6, None: 4}
    by_problem = Counter((row["problem"] or "").split(",")[0] for row in rows)
    assert by_problem == {
        "": 31,
        "the question has no choices": 1,
        "the question or its answer is missing": 1,
        "the right answer": 1,
        "its choices are AC": 1,
    }
    (lecture,) = (row for row in rows if (row["question"] or "").startswith("Lecture"))
    assert (lecture["letters"], lecture["answer"], len(lecture["images"])) == ("ABC", "C", 2)


def test_data_that_is_not_there(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    with pytest.raises(OptionError, match="no column images, texts"):
        cauldron.read(str(tmp_path), "ai2d")
    with pytest.raises(OptionError, match="no Parquet file"):
        cauldron.read(str(tmp_path / "nowhere"), "ai2d")


def test_drawn_questions_have_known_answers() -> None:
    rows = rows_of_diagrams(60)
    assert rows == rows_of_diagrams(60)
    assert rows != rows_of_diagrams(60, seed=1)
    turns = [turn for row in rows for turn in row["texts"]]
    assert all(cauldron.parsed(turn["user"], turn["assistant"]).problem is None for turn in turns)
    for row in rows:
        with Image.open(io.BytesIO(row["images"][0]["bytes"])) as image:
            image.verify()
    given = Counter(turn["assistant"] for turn in turns)
    assert set(given) == {"Answer: A", "Answer: B", "Answer: C", "Answer: D"}


@pytest.mark.other_engine
def test_a_whole_evaluation(dataset: Path, tmp_path: Path) -> None:
    """A shrunken Gemma-3 through the command, on the real layout."""
    out = tmp_path / "out"
    result = CliRunner().invoke(_app(), ["--data", str(dataset), "--out", str(out), "--dollars-per-hour", "2"])
    assert result.exit_code == 0, result.output
    summary = json.loads((out / "summary.json").read_text())
    rows = {row["id"]: row for row in pq.read_table(out / "rows.parquet").to_pylist()}
    assert len(rows) == 35
    assert summary["questions"] == sum(summary["quadrants"].values()) == 31
    for row in rows.values():
        for name in ("seen", "blind"):
            assert row[name]["value"] is None or row[name]["value"] in row["letters"]
            assert (row[name]["value"] is None) == (row[name]["error"] is not None)
        assert (row["quadrant"] == "not asked") == (row["problem"] is not None)
    # Two images can't be read: no answer with them, one without.
    assert summary["rates"]["with the image"]["failed"] == 2
    assert summary["rates"]["without"]["failed"] == 0
    assert summary["errors"] == {"invalid_media": 1, "null_prompt": 1}
    assert all("per 1,000" in one["cost"] for one in summary["passes"])
    page = (out / "report.html").read_text()
    assert page.count("<figure>") == min(12, summary["quadrants"]["both wrong"] + summary["quadrants"]["image hurt"])
    assert "data:image/jpeg;base64," in page


def _app() -> Any:
    import typer

    app = typer.Typer()
    app.command()(ai2d.main)
    return app


def row(name: str, answer: str, seen: str | None, blind: str | None, **more: Any) -> dict[str, Any]:
    right = (seen == answer, blind == answer)
    quadrant = {(1, 1): "both right", (1, 0): "image helped", (0, 1): "image hurt", (0, 0): "both wrong"}[right]
    cells = {
        which: {"value": value, "error": None if value else "truncated: x", "prompt_tokens": 100, "cached_tokens": 25}
        for which, value in (("seen", seen), ("blind", blind))
    }
    fixed = {"id": name, "subset": "ai2d", "question": "<b>Which?</b>", "letters": "ABCD", "answer": answer}
    return {**fixed, **cells, "quadrant": quadrant, "problem": None, "picture": None, **more}


def test_the_report_counts_and_escapes(tmp_path: Path) -> None:
    rows = [row("1", "A", "A", "A"), row("2", "A", "A", "B"), row("3", "B", "C", "B"), row("4", "B", None, "C")]
    rows.append(row("5", "A", None, None, problem="the question has no choices", quadrant="not asked", subset="tqa"))
    report = Report(rows, (Pass("with", 2.0), Pass("without", 1.0)), "m", engines=2, dollars_per_hour=3.6)
    assert report.summary()["quadrants"] == {"both right": 1, "image helped": 1, "image hurt": 1, "both wrong": 1}
    assert report.rates["with the image"][:4] == (4, 2, 1, 0.5)
    assert report.speeds[0][:5] == ("with images", 2.0, 2.0, 400, 0.25)
    assert report.speeds[0].cost == "$1.0000 per 1,000"
    assert report.chance == 0.25
    write_report(report, tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "&lt;b&gt;Which?" in page
    assert "<b>Which" not in page
    assert page.index("image hurt)") < page.index("both wrong)")
    assert "1 not asked: the question has no choices" in page


def test_the_statistics() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    low, high = wilson(50, 100)
    assert (round(low, 3), round(high, 3)) == (0.404, 0.596)  # Wilson (1927), as statsmodels has it
    assert mcnemar(0, 0) == mcnemar(5, 5) == 1.0
    assert mcnemar(10, 0) == pytest.approx(2 / 1024)
    assert mcnemar(3000, 2000) < 1e-40
