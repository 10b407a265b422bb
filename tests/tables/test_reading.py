"""What a file says comes into the table: no cell, row or column is lost or changed in silence."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import daft
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from daft_vllm.errors import OptionError
from daft_vllm.tables.reading import read_input, read_table

SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
MANY = 300_000
"""Rows after which Daft has looked at no row for the types of columns."""


def types(df: daft.DataFrame) -> dict[str, str]:
    return {field.name: str(field.dtype) for field in df.schema()}


CELLS = st.one_of(
    st.sampled_from(
        ["", "007", "-0", "+5", "1e5", "1.10", "NaN", "inf", "True", "true", " 5", "2024-01-02", "10:00:00"]
    ),
    st.integers(-(10**20), 10**20).map(str),
    st.floats().map(str),
    st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=6),
)


@SETTINGS
@given(cells=st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=4), suffix=st.sampled_from([".csv", ".tsv"]))
@example(cells=[("007", "12345678901234567890"), ("8", "1")], suffix=".csv")
def test_every_cell_of_a_csv_file_comes_back(
    tmp_path_factory: pytest.TempPathFactory, cells: list[tuple[str, str]], suffix: str
) -> None:
    path = tmp_path_factory.mktemp("csv") / f"in{suffix}"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="," if suffix == ".csv" else "\t", quoting=csv.QUOTE_ALL)
        writer.writerows([("a", "b"), *cells])
    found = read_table(str(path)).to_pydict()
    for name, written in zip("ab", zip(*cells, strict=True), strict=True):
        for cell, value in zip(written, found[name], strict=True):
            if isinstance(value, float):
                assert value == float(cell) or (math.isnan(value) and cell.lower() == "nan")
            else:
                assert ("" if value is None else str(value)).lower() == cell.lower()


@pytest.mark.parametrize(
    ("first", "last", "dtype", "value"),
    [
        ("1", "x", "String", "x"),
        ("1", "1.5", "Float64", 1.5),
        ("1", "007", "String", "007"),
        ("", "7", "String", "7"),
        ("true", "maybe", "String", "maybe"),
        ("2024-01-02", "soon", "String", "soon"),
    ],
)
def test_the_last_cell_of_a_csv_file_counts_for_its_type(
    tmp_path: Path, first: str, last: str, dtype: str, value: Any
) -> None:
    (tmp_path / "in.csv").write_text("n,q\n" + f"{first},aaaaaaaaa\n" * MANY + f"{last},b\n", encoding="utf-8")
    df = read_table(str(tmp_path / "in.csv"))
    assert types(df) == {"n": dtype, "q": "String"}
    assert df.where(daft.col("q") == "b").to_pydict()["n"] == [value]


def test_numbers_and_booleans_of_csv_have_their_types(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("i,f,b,d,id\n1,1.5,true,2024-01-02,5e12\n-20,3,False,2024-01-03,6e12\n,,,,\n")
    df = read_table(str(tmp_path / "in.csv"))
    assert types(df) == {"i": "Int64", "f": "Float64", "b": "Bool", "d": "String", "id": "String"}
    assert df.to_pydict()["i"] == [1, -20, None]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["2024-01-01", "2024-01-01T00:00:00.123456789Z", "007"])
    | st.text(st.characters(codec="utf-8"), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
    max_leaves=5,
)


def same(written: Any, found: Any) -> bool:
    """Whether a value came back: fields that only other rows have are null, and a number beside texts is a text."""
    if isinstance(written, dict):
        return isinstance(found, dict) and all(same(written.get(name), one) for name, one in found.items())
    if isinstance(written, list):
        return isinstance(found, list) and all(same(a, b) for a, b in zip(written, found, strict=True))
    if isinstance(found, str) and not isinstance(written, str):
        return bool(json.loads(found) == written)
    return (type(written) is type(found) and written == found) or (not isinstance(written, bool) and written == found)


@SETTINGS
@given(rows=st.lists(st.dictionaries(st.sampled_from("abc"), JSON, min_size=1), min_size=1, max_size=3))
def test_every_value_of_json_lines_comes_back_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
) -> None:
    folder = tmp_path_factory.mktemp("json")
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (folder / "in.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
    for name in ("in.jsonl", "in.json"):
        try:
            df = read_table(str(folder / name))
        except OptionError as e:
            if "write one kind of value" not in str(e):
                raise
            continue
        found = df.to_pylist()
        assert len(found) == len(rows)
        assert set(df.schema().column_names()) == {key for row in rows for key in row}
        assert all(same(row, one) for row, one in zip(rows, found, strict=True)), (rows, found)


@pytest.mark.parametrize(
    ("first", "last", "value"),
    [('"n": 1', '"n": "x"', "x"), ('"n": 1', '"n": 1.5', 1.5), ('"m": 1', '"n": 2', 2), ('"n": null', '"n": 2', 2)],
)
def test_the_last_line_of_json_counts_for_types_and_columns(tmp_path: Path, first: str, last: str, value: Any) -> None:
    lines = f'{{{first}, "q": "aaaaaaaaaa"}}\n' * (MANY // 3) + f'{{{last}, "q": "b"}}\n'
    (tmp_path / "in.jsonl").write_text(lines, encoding="utf-8")
    assert read_table(str(tmp_path / "in.jsonl")).where(daft.col("q") == "b").to_pydict()["n"] == [value]


def test_files_of_a_glob_have_the_same_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("1.csv").write_text("a,b\n1,x\n")
    for other in ("b,a\ny,2\n", "a\n2\n", "a,b,c\n2,y,z\n"):
        Path("2.csv").write_text(other)
        with pytest.raises(OptionError, match=r"1\.csv and 2\.csv have different columns: a, b, and "):
            read_table("*.csv")
    Path("2.csv").write_text("a,b\nn/a,y\n")
    assert read_table("*.csv").to_pydict() == {"a": ["1", "n/a"], "b": ["x", "y"]}
    pq.write_table(pa.table({"a": [1], "b": ["x"]}), "1.parquet")
    for table in (pa.table({"b": ["y"]}), pa.table({"a": [2.5], "b": ["y"]})):
        pq.write_table(table, "2.parquet")
        with pytest.raises(OptionError, match=r"1\.parquet and 2\.parquet have different columns: a Int64, b String"):
            read_table("*.parquet")
    pq.write_table(pa.table({"b": ["y"], "a": [2]}), "2.parquet")
    assert read_table("*.parquet").to_pydict() == {"a": [1, 2], "b": ["x", "y"]}
    Path("1.jsonl").write_text('{"a": 1}\n')
    Path("2.jsonl").write_text('{"b": 2}\n')
    assert read_table("*.jsonl").to_pydict() == {"a": [1, None], "b": [None, 2]}


def test_names_with_the_characters_of_globs(tmp_path: Path) -> None:
    for name in ("a [1].csv", "a {b,c}.csv", "what?.csv", "a*.csv"):
        (tmp_path / name).write_text(f"n\n{len(name)}\n")
        assert read_table(str(tmp_path / name)).to_pydict() == {"n": [len(name)]}
    folder = tmp_path / "in [2]"
    folder.mkdir()
    (folder / "x.jsonl").write_text('{"n": 1}\n')
    assert read_table(str(folder)).to_pydict() == {"n": [1]}


def test_a_glob_of_images_takes_those_of_its_kind(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a.png", "b.jpg"):
        (tmp_path / "in" / name).write_bytes(b"x")
    assert read_input(f"{tmp_path}/**/*.png").df.to_pydict() == {"path": [str(tmp_path / "in/a.png")]}
    assert read_input(str(tmp_path / "in")).df.count_rows() == 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", b"", "the input 'x.csv' is empty"),
        ("x.csv", b"\n\n", "the input 'x.csv' is empty"),
        ("x.csv", b"id,id\n1,2\n", "two columns 'id': rename one in its first line"),
        ("x.csv", "id,caf\xe9\n1,2\n".encode("latin1"), "not in UTF-8: convert it, for example with iconv -f latin1"),
        ("x.csv", "id,q\n1,\xe9\n".encode("utf-16"), "iconv -f utf-16 -t utf-8 x.csv"),
        ("x.jsonl", '{"q": "caf\xe9"}\n'.encode("latin1"), "not in UTF-8: convert it"),
        ("x.jsonl", b"", "x.jsonl is empty"),
        ("x.json", b"[]", "x.json is empty"),
        ("x.jsonl", b"{}\n", "the objects in x.jsonl are empty"),
        ("x.jsonl", '\ufeff{"a": 1}\n'.encode(), "x.jsonl begins with a byte order mark: delete it"),
        ("x.json", b'{\n "a": 1\n}\n', "an object of several lines: write each object on a line of its own"),
        ("x.jsonl", b'{"a": 1}\n{"a":\n', "line 2 of x.jsonl can't be read: expecting value, at column 6."),
        ("x.jsonl", b'{"a": 1}{"a": 2}\n', "line 1 of x.jsonl can't be read: extra data, at column 9."),
        ("x.jsonl", b'{"a": [1]}\n{"a": "x"}\n', "'a' is a list in line 1 of x.jsonl, and a text in line 2 of x.jsonl"),
        ("x.jsonl", b'{"a": {"b": {}}}\n{"a": {"b": 3}}\n', "'a.b' is an object in line 1 of x.jsonl, and a number"),
        ("x.jsonl", b'{"a": 123456789012345678901}\n', "line 1 of x.jsonl has the number 123456789012345678901, too"),
        ("x.jsonl", b'{"a": 1e999}\n', "line 1 of x.jsonl has a number too large"),
        ("x.jsonl", b'{"a": "\\ud83d"}\n', "line 1 of x.jsonl has half of a surrogate pair"),
        ("x.json", b'[{"a": 1}, 2]\n', "item 2 of x.json is no JSON object"),
        ("x.jsonl", b'"a"\n', "line 1 of x.jsonl holds no JSON object"),
    ],
)
def test_what_is_wrong_with_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(content)
    with pytest.raises(OptionError) as caught:
        read_table(name)
    assert message in str(caught.value)


def test_a_header_alone_is_an_empty_table(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("id,q\n")
    assert read_table(str(tmp_path / "in.csv")).to_pydict() == {"id": [], "q": []}
