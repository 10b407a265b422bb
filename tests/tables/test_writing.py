"""Outputs in folders in which others may write: what they put there is not written to, and nothing is left there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import daft
import pytest
from daft import DataType, Series

from daft_vllm.errors import OptionError
from daft_vllm.tables.writing import output_of

TABLE = {"a": [1, 2]}
FORMATS = ("csv", "tsv", "jsonl", "parquet")


@daft.func.batch(return_dtype=DataType.int64())
def broken(column: Series) -> Series:
    raise ValueError("no rows")


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder with links, under names that can be guessed, to a file of this user."""
    (tmp_path / "precious").write_text("precious")
    folder = tmp_path / "shared"
    folder.mkdir()
    for name in (*(f"out.{kind}.part" for kind in FORMATS), ".daft-vllm.part"):
        (folder / name).symlink_to(tmp_path / "precious")
    return folder


@pytest.mark.parametrize("kind", FORMATS)
def test_what_others_put_there_is_not_written_to(shared: Path, kind: str) -> None:
    before = sorted(shared.iterdir())
    target = shared / f"out.{kind}"
    mask = os.umask(0o027)
    try:
        assert output_of(str(target)).write(daft.from_pydict(TABLE)).rows == 2
    finally:
        os.umask(mask)
    assert stat.S_IMODE(target.stat().st_mode) == 0o640, "the rights are those of any new file"
    assert sorted(shared.iterdir()) == sorted([*before, target])
    assert (shared.parent / "precious").read_text() == "precious"


def test_a_folder_as_output(shared: Path) -> None:
    with pytest.raises(OptionError, match="has files already"):
        output_of(f"{shared}/")
    output_of(f"{shared}/", overwrite=True)
    assert (shared.parent / "precious").read_text() == "precious"
    assert not list(shared.glob(".daft-vllm-*"))


def test_an_output_that_is_a_link_is_replaced(shared: Path) -> None:
    target = shared / "answers.csv"
    target.symlink_to(shared.parent / "precious")
    with pytest.raises(OptionError, match="exists already"):
        output_of(str(target))
    output_of(str(target), overwrite=True).write(daft.from_pydict(TABLE))
    assert not target.is_symlink()
    assert (shared.parent / "precious").read_text() == "precious"


def test_a_query_that_fails_leaves_nothing(shared: Path) -> None:
    before = sorted(shared.iterdir())
    df = daft.from_pydict(TABLE)
    with pytest.raises(Exception, match="no rows"):
        output_of(str(shared / "out.csv")).write(df.with_column("b", broken(df["a"])))
    assert sorted(shared.iterdir()) == before
