"""The command, as a user types it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import daft
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from daft_vllm.cli import app
from daft_vllm.errors import OptionError
from daft_vllm.job import read_table
from daft_vllm.udf.columns.template import template
from tests.conftest import ENGINE_ARGS

runner = CliRunner()


def run_cli(*args: str, timeout: float = 380) -> subprocess.CompletedProcess[str]:
    """Run ``daft-vllm`` in a process of its own."""
    command = [str(Path(sys.executable).with_name("daft-vllm")), *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


def test_run_keeps_every_row_and_column(smollm2: str, tmp_path: Path) -> None:
    """CSV in, Parquet out, a schema, a limit, an over-long row, and the exit status that goes with it."""
    rows = [f'{i},"item {i}, of wood",{i / 2}' for i in range(30)]
    rows[4] = f'4,"{"word " * 2000}",2.0'
    (tmp_path / "in.csv").write_text("id,text,price\n" + "\n".join(rows) + "\n", encoding="utf-8")
    schema = {
        "type": "object",
        "properties": {"kind": {"enum": ["tool", "food"]}, "rank": {"enum": [1, 2, 3]}},
        "required": ["kind", "rank"],
    }
    (tmp_path / "schema.json").write_text(json.dumps(schema), encoding="utf-8")
    done = run_cli(
        "run",
        *("--input", str(tmp_path / "in.csv"), "--output", str(tmp_path / "out.parquet")),
        *("--model", smollm2, "--gpus", "0", "--prompt", "Classify: {text}", "--schema", str(tmp_path / "schema.json")),
        *("--system", "You sort things.", "--limit", "20", "--max-tokens", "40", "--column", "label"),
        *("--engine-args", json.dumps(ENGINE_ARGS), "--on-error", "raise"),
    )
    assert done.returncode == 1, done.stderr
    assert "1 rows have no answer" in done.stderr
    assert "completion tokens" in done.stderr
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.column_names == ["id", "text", "price", "label", "error"]
    assert table["id"].to_pylist() == list(range(20))
    labels = table["label"].to_pylist()
    assert [i for i, label in enumerate(labels) if label is None] == [4]
    assert all(
        label["kind"] in ("tool", "food") and label["rank"] in (1, 2, 3) for i, label in enumerate(labels) if i != 4
    )
    assert table["error"].to_pylist()[4].startswith("prompt_too_long")
    assert not (tmp_path / "out.parquet.part").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--prompt", "Say {txt}"], "Did you mean 'text'"),
        (["--prompt", "no field"], "names no column"),
        (["--prompt", "{text", "--choices", "a"], "braces"),
        (["--prompt", "{text}", "--input", "nothing.parquet"], "no input"),
        (["--prompt", "{text}", "--input", "x.xlsx"], "cannot tell the format"),
        (["--prompt", "{text}", "--output", "x.xlsx"], "cannot tell the format"),
        (["--prompt", "{text}", "--column", "text"], "already"),
        (["--prompt", "{text}", "--engine-args", "[1]"], "JSON object"),
        (["--prompt", "{text}", "--engine-args", "{"], "not JSON"),
        (["--prompt", "{text}", "--engine-args", '{"max_modellen": 1}'], "Did you mean 'max_model_len'"),
        (["--prompt", "{text}", "--schema", "nothing.json"], "nothing.json"),
        (["--prompt", "{text}", "--schema", "s.json", "--choices", "a"], "exclude"),
        (["--prompt", "{text}", "--model", "./nothing"], "no model folder"),
    ],
)
def test_mistakes_are_said_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({"text": ["a"]}), "in.parquet")
    base = ["run", "--input", "in.parquet", "--output", "out.parquet", "--gpus", "0"]
    result = runner.invoke(app, [*base, *args])
    assert result.exit_code == 1
    assert message in result.stderr.replace("\n", " ")
    assert not Path("out.parquet").exists()


def test_prompt_template() -> None:
    df = daft.from_pydict({"a": ["x", None], "b": [1, 2]})
    filled = df.select(template("{{a}} is {a} and {b}.", df).alias("p")).to_pydict()["p"]
    assert filled == ["{a} is x and 1.", None]
    with pytest.raises(OptionError, match="not a column"):
        template("{a!r}", df)


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_inputs(tmp_path: Path, suffix: str) -> None:
    for part in (1, 2):
        path = tmp_path / f"part{part}{suffix}"
        if suffix == ".parquet":
            pq.write_table(pa.table({"a": [part]}), path)
        else:
            path.write_text(f"a\n{part}\n" if suffix == ".csv" else f'{{"a": {part}}}\n', encoding="utf-8")
    assert sorted(read_table(f"{tmp_path}/*{suffix}").to_pydict()["a"]) == [1, 2]
    assert read_table(f"{tmp_path}/part1{suffix}").to_pydict()["a"] == [1]


def test_outputs(tmp_path: Path) -> None:
    """The writers, on a table that needs no model."""
    from daft_vllm.job import _writer

    df = daft.from_pydict({"id": [1, 2], "s": [{"k": "é"}, None]})
    assert _writer(str(tmp_path / "o.jsonl"))(df) == 2
    lines = (tmp_path / "o.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [{"id": 1, "s": {"k": "é"}}, {"id": 2, "s": None}]
    assert _writer(str(tmp_path / "o.parquet"))(df) == 2
    assert pq.read_table(tmp_path / "o.parquet").to_pylist() == df.to_pylist()
    assert _writer(f"{tmp_path}/folder/")(df) == 2
    assert daft.read_parquet(f"{tmp_path}/folder/*.parquet").count_rows() == 2
    assert _writer(str(tmp_path / "none.parquet"))(df.where(daft.col("id") > 5)) == 0
    assert pq.read_table(tmp_path / "none.parquet").num_rows == 0


def test_a_short_job_starts_quickly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is compiled for a few hundred rows of ordinary answers, unless a goal is given."""
    from daft_vllm import job

    asked: list[Any] = []

    def remember(*args: Any, **options: Any) -> None:
        asked.append(options["options"].goal)
        raise OptionError("enough is known")

    monkeypatch.setattr(job, "run_job", remember)
    (tmp_path / "in.csv").write_text("q\n" + "a\n" * 300)
    command = ["run", "--input", str(tmp_path / "in.csv"), "--output", str(tmp_path / "out.jsonl"), "--prompt", "{q}"]
    for more in (
        [],
        ["--limit", "256"],
        ["--limit", "256", "--max-tokens", "2048"],
        ["--limit", "9", "--goal", "text"],
    ):
        runner.invoke(app, [*command, *more])
    assert asked == [None, "short-job", None, "text"]
