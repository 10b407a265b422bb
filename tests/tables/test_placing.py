"""Outputs are complete or absent, and belong to one job at a time."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import daft
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from daft_vllm.errors import OptionError, OutputError
from daft_vllm.tables.placing import DONE, Claim, part_folder
from daft_vllm.tables.writing import Output, output_of

TABLE = {"a": [1, 2, 3], "error": [None, "why", None]}
PLACES = ("out.parquet", "out.jsonl", "out.csv", "out/")


def rows_of(place: Path) -> int:
    if place.is_dir():
        return int(daft.read_parquet(str(place)).count_rows())
    return int((daft.read_parquet if place.suffix == ".parquet" else read_lines)(str(place)).count_rows())


def read_lines(place: str) -> daft.DataFrame:
    return daft.read_json(place) if place.endswith("jsonl") else daft.read_csv(place)


@pytest.mark.parametrize("place", PLACES)
def test_failed_rows_are_counted_where_they_are_written(tmp_path: Path, place: str) -> None:
    output = output_of(f"{tmp_path}/{place}")
    assert output.write(daft.from_pydict(TABLE), "error") == (3, 1)
    assert rows_of(tmp_path / place.rstrip("/")) == 3
    assert (tmp_path / "out" / DONE).exists() == (place == "out/")
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("place", PLACES)
def test_an_output_that_lacks_rows_is_an_error_and_gets_no_place(tmp_path: Path, place: str) -> None:
    output = replace(output_of(f"{tmp_path}/{place}"), least=4)
    with pytest.raises(OutputError, match=r"only 3 of 4 rows came, and Daft gave no error: .* is not complete"):
        output.write(daft.from_pydict(TABLE))
    assert not list(tmp_path.iterdir())
    assert replace(output, least=3).write(daft.from_pydict(TABLE)).rows == 3


@pytest.mark.parametrize("place", PLACES)
def test_an_output_has_one_job_at_a_time(tmp_path: Path, place: str) -> None:
    output = output_of(f"{tmp_path}/{place}")
    with output.claimed():
        with pytest.raises(OptionError, match=rf"another job writes .* now \(process {os.getpid()}\)"):
            output_of(f"{tmp_path}/{place}")
        with (
            pytest.raises(OptionError, match="another job"),
            Output(output.place, output.kind, output.is_folder).claimed(),
        ):
            pass
        output.write(daft.from_pydict(TABLE))
    assert not list(tmp_path.glob(".*"))
    output_of(f"{tmp_path}/{place}", overwrite=True)


KILLED = """
import os, sys, signal
from dataclasses import replace
from pathlib import Path
from daft_vllm.tables.placing import Claim
claim = Claim(Path(sys.argv[1]))
claim.new_file().write_text("half of")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_job_left_goes_with_the_next_one(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "out.csv")], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == [part_folder(tmp_path / "out.csv")]
    output_of(str(tmp_path / "out.csv")).write(daft.from_pydict(TABLE))
    assert list(tmp_path.iterdir()) == [tmp_path / "out.csv"]


@pytest.mark.parametrize("after", range(6))
def test_a_folder_is_moved_to_its_end_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """The job is killed after each of the steps in which files of a folder are replaced."""
    target = tmp_path / "out"
    output_of(f"{target}/").write(daft.from_pydict({"a": [0]}))
    old = {path.name for path in target.iterdir()} - {DONE}
    claim = Claim(target)
    folder = claim.new_folder()
    for name in ("one.parquet", "two.parquet"):
        pq.write_table(pa.table({"a": [1]}), folder / name)
    steps = 0

    class Killed(BaseException):
        pass

    def counting(original: Any) -> Any:
        def step(self: Path, *args: Any, **more: Any) -> Any:
            nonlocal steps
            if target in (self.parent, *(Path(one).parent for one in args)) or self.name == "moving.json":
                steps += 1
                if steps > after:
                    raise Killed
            return original(self, *args, **more)

        return step

    with monkeypatch.context() as patched:
        for name in ("unlink", "replace"):
            patched.setattr(Path, name, counting(getattr(Path, name)))
        with pytest.raises(Killed):
            claim.place_folder()
    os.close(claim._lock)  # as the kernel does
    again = output_of(f"{target}/", overwrite=True)
    assert not (part_folder(target)).exists()
    assert {path.name for path in target.iterdir()} == {"one.parquet", "two.parquet", DONE}
    assert not old & {path.name for path in target.iterdir()}
    assert again.exists()


DISK_FULL = """
import sys, json
import daft, numpy as np
from daft_vllm.tables.writing import output_of
from daft_vllm.errors import OutputError
try:
    rng = np.random.default_rng(0)
    df = daft.from_pydict({"a": [rng.bytes(3000).hex() for _ in range(2000)]})
    output_of(sys.argv[1]).write(df)
except OutputError as e:
    print(e)
else:
    print("written")
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    """A disk of 2 MiB, if this user may make one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a disk can't be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("place", PLACES)
def test_a_full_disk_is_one_clear_error_and_leaves_nothing(small_disk: Path, place: str) -> None:
    command = [sys.executable, "-c", DISK_FULL, f"{small_disk}/{place}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == f"rows can't be written to '{small_disk}/{place.rstrip('/')}': no space left on device.\n", (
        done
    )
    assert list(small_disk.iterdir()) == []


@pytest.mark.parametrize("place", PLACES)
def test_a_limit_of_file_sizes_is_named_too(tmp_path: Path, place: str) -> None:
    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    command = [sys.executable, "-c", DISK_FULL, f"{tmp_path}/{place}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, preexec_fn=limit)
    assert "file too large" in done.stdout, done
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_can_only_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(folder)], capture_output=True, check=False
    ).returncode:
        pytest.skip("a disk can't be mounted here")
    try:
        for place in PLACES:
            with pytest.raises(OptionError, match="can't be written: Read-only file system"):
                output_of(f"{folder}/{place}")
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_folder_that_is_a_disk_of_its_own(small_disk: Path) -> None:
    """Nothing can be renamed from beside it, and it can't be replaced itself."""
    for _ in range(2):
        assert output_of(f"{small_disk}/", overwrite=True).write(daft.from_pydict(TABLE), "error") == (3, 1)
        assert rows_of(small_disk) == 3
        assert len(list(small_disk.iterdir())) == 2


def test_a_query_that_fails_leaves_the_output_as_it_was(tmp_path: Path) -> None:
    @daft.func.batch(return_dtype=daft.DataType.int64())
    def broken(column: daft.Series) -> daft.Series:
        raise ValueError("no rows")

    for place in PLACES:
        output_of(f"{tmp_path}/{place}").write(daft.from_pydict(TABLE))
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        df = daft.from_pydict(TABLE)
        with pytest.raises(Exception, match="no rows"):
            output_of(f"{tmp_path}/{place}", overwrite=True).write(df.with_column("b", broken(df["a"])))
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_an_error_of_the_query_is_no_error_of_the_disk(tmp_path: Path) -> None:
    @daft.func.batch(return_dtype=daft.DataType.int64())
    def missing(column: daft.Series) -> daft.Series:
        raise FileNotFoundError(2, "no such picture")

    df = daft.from_pydict(TABLE)
    for place in PLACES:
        with pytest.raises(Exception, match="no such picture") as error:
            output_of(f"{tmp_path}/{place}").write(df.with_column("b", missing(df["a"])))
        assert not isinstance(error.value, OutputError)


def test_a_reader_of_a_folder_skips_the_marker(tmp_path: Path) -> None:
    output_of(f"{tmp_path}/out/").write(daft.from_pydict(TABLE))
    assert daft.read_parquet(f"{tmp_path}/out").count_rows() == 3
    assert pq.read_table(tmp_path / "out").num_rows == 3
    assert (tmp_path / "out" / DONE).read_bytes() == b""
