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
import typer
from PIL import Image
from typer.testing import CliRunner

from benchmarks import shrunken
from daft_vllm import SamplingOptions
from daft_vllm.cli import app
from daft_vllm.cli.names import complete_card, complete_goal, complete_model
from daft_vllm.cli.options import options_of, with_prompt_options
from daft_vllm.cli.terminal import ELSEWHERE
from daft_vllm.errors import OptionError
from daft_vllm.job import count_prompts, prompt_of
from daft_vllm.tables.reading import read_input, read_table
from daft_vllm.tables.writing import output_of
from daft_vllm.udf.columns.template import template
from daft_vllm.udf.options import OPTION_NAMES, PromptOptions
from tests.conftest import ENGINE_ARGS, TINY_ARGS

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
    assert "1 row has no answer" in done.stderr
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
    assert not list(tmp_path.glob("*.part"))
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--prompt", "Say {txt}"], "Did you mean 'text'"),
        (["--prompt", "no field"], "names no column"),
        (["--prompt", "{text", "--choices", "a"], "braces"),
        (["--prompt", "{text}", "--input", "nothing.parquet"], "no input"),
        (["--prompt", "{text}", "--input", "x.xlsx"], "cannot tell the format"),
        (["--prompt", "{text}", "--output", "x.xlsx"], "cannot tell the format"),
        (["--prompt", '{"a": {text}}'], "If the braces are meant as text, double them"),
        (
            ["--prompt", "{text}", "--output", "there.csv"],
            "'there.csv' exists already: choose another name, or",
        ),
        (["--prompt", "{text}", "--output", "folder.csv"], "is a folder, not a file: write folder.csv/"),
        (
            ["--prompt", "{text}", "--output", "folder.csv/"],
            "has files already: choose another one",
        ),
        (["--prompt", "{text}", "--output", "in.parquet/out.csv"], "can't be written: "),
        (["--prompt", "{text}", "--output", "/proc/none/out.csv"], "can't be written: "),
        (["--prompt", "{text}", "--output", ""], "the output has no name"),
        (["--prompt", "{text}", "--input", "blank.jsonl"], "line 2 of blank.jsonl is blank: delete it"),
        (
            ["--prompt", "{text}", "--input", "nan.jsonl"],
            "can't be read: NaN is not JSON: write null",
        ),
        (["--prompt", "{text}", "--input", "cut.jsonl"], "line 2 of cut.jsonl can't be read"),
        (["--prompt", "{text}", "--input", "latin.csv"], "is not in UTF-8 (column 'text'): convert it"),
        (["--prompt", "{text}", "--input", "ragged.csv"], "the input 'ragged.csv' can't be read"),
        (["--prompt", "{text}", "--images", "img"], "--images 'img' is not a column. Columns: text."),
        (
            ["--prompt", "{text}", "--engine-args", '{"max_model_len": 100000}'],
            "longer than the model's context of 8192",
        ),
        (["--prompt", "{text}", "--engine-args", '{"max_model_len": "big"}'], "max_model_len is a whole number"),
        (
            ["--prompt", "{text}", "--engine-args", "max_model_len=5"],
            "Write for example --engine-args '{",
        ),
        (["--prompt", "{text}", "--logit-bias", "x"], "--logit-bias"),
        (["--prompt", "{text}", "--column", "text"], "already"),
        (["--prompt", "{text}", "--column", "error"], "the answers and the errors need a column each"),
        (["--prompt", "{text}", "--column", ""], "a new column has no name"),
        (["--prompt", "{text}", "--schema", '{"type": "string"}'], "--schema is the name of a file"),
        (["--prompt", "{text}", "--adapters", "a=b"], "Write for example --adapters '{"),
        (["--prompt", "{text}", "--examples", '[["a"]]'], """Write for example --examples '[["1 + 1?", "2"]]'."""),
        (["--prompt", "{text}", "--input", "table"], "there is no input 'table'"),
        (["--prompt", "{text}", "--input", ""], "the input has no name"),
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
    Path("there.csv").touch()
    Path("folder.csv").mkdir()
    Path("folder.csv/x").touch()
    for name, content in WRONG_FILES.items():
        Path(name).write_text(content, encoding="latin1")
    base = ["run", "--input", "in.parquet", "--output", "out.parquet", "--gpus", "0"]
    result = runner.invoke(app, [*base, *args])
    assert result.exit_code == 1
    assert " ".join(message.split()) in lines(result)
    assert "Traceback" not in result.stderr
    assert len(lines(result)) < 400
    assert Path("there.csv").read_text() == ""
    assert not Path("out.parquet").exists()


WRONG_FILES = {
    "blank.jsonl": '{"text": "a"}\n\n{"text": "b"}\n',
    "nan.jsonl": '{"text": NaN}\n',
    "cut.jsonl": '{"text": "a"}\n{"text": "b\n',
    "latin.csv": "text,n\ncaf\u00e9,1\n",
    "ragged.csv": "text,n\na,1\nb\n",
}


@pytest.mark.parametrize(
    ("flag", "advice"),
    [
        ("--top_p", "Write --top-p."),
        ("--max-new-tokens", "Write --max-tokens."),
        ("--temp", "Write --temperature."),
        ("--max-model-len", """Write --engine-args '{"max_model_len": ...}'."""),
        ("--tp", """Write --engine-args '{"tensor_parallel_size": ...}'."""),
        ("--response-format", "There is --schema and --choices."),
        ("--n", "A row has one answer: repeat the rows instead."),
        ("--tools", "It is only in Python"),
    ],
)
def test_options_that_the_command_has_not_lead_to_those_it_has(flag: str, advice: str) -> None:
    result = runner.invoke(app, ["run", flag, "1"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert result.exit_code == 2
    assert f"No such option: {flag}. {advice}" in lines(result)


def test_a_file_that_is_not_there_is_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({"text": ["a"]}), "in.parquet")
    for args in (["--input", "nope.csv"], ["--input", "in.parquet", "--schema", "nope.json"]):
        result = runner.invoke(app, ["run", "--output", "o.csv", "--prompt", "{text}", *args])
        assert result.exit_code == 1
        assert lines(result).count("nope") == 1


def test_globs_need_no_folder_before_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for i in range(2):
        Path(f"part-{i}.csv").write_text(f"a\n{i}\n")
    assert sorted(read_table("part-*.csv").to_pydict()["a"]) == [0, 1]


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

    def write(name: str, table: daft.DataFrame) -> int:
        return output_of(str(tmp_path / name) + ("/" if name == "folder" else "")).write(table).rows

    df = daft.from_pydict({"id": [1, 2], "s": [{"k": "é"}, None]})
    assert write("o.jsonl", df) == 2
    lines = (tmp_path / "o.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [{"id": 1, "s": {"k": "é"}}, {"id": 2, "s": None}]
    assert write("o.parquet", df) == 2
    assert pq.read_table(tmp_path / "o.parquet").to_pylist() == df.to_pylist()
    assert write("folder", df) == 2
    assert daft.read_parquet(f"{tmp_path}/folder/*.parquet").count_rows() == 2
    assert write("none.parquet", df.where(daft.col("id") > 5)) == 0
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


def lines(result: Any) -> str:
    """Return what a command said on stderr as one line."""
    return " ".join(result.stderr.split())


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_an_empty_cell_is_null_unless_it_is_to_be_kept(tmp_path: Path, suffix: str) -> None:
    delimiter = "," if suffix == ".csv" else "\t"
    path = tmp_path / f"in{suffix}"
    path.write_text("\n".join(delimiter.join(row) for row in (("id", "q"), ("1", ""), ("", " "), ("3", "a"))) + "\n")
    assert read_table(str(path)).to_pydict() == {"id": [1, None, 3], "q": [None, " ", "a"]}
    assert read_table(str(path), keep_empty=True).to_pydict() == {"id": [1, None, 3], "q": ["", " ", "a"]}


@pytest.mark.parametrize("skip_blank", [True, False])
def test_null_and_blank_prompts_are_counted_before_a_load(skip_blank: bool) -> None:
    df = daft.from_pydict({"t": ["a", None, "b", "c"], "q": ["?", "?", " ", None]})
    prompt = prompt_of(df, "{t}: {q}", skip_blank=skip_blank)
    assert count_prompts(df, prompt) == (4, 2, 1)
    asked = df.select(prompt.messages.alias("p")).to_pydict()["p"]  # type: ignore[union-attr]
    assert asked == ["a: ?", None, "" if skip_blank else "b:  ", None]
    images = prompt_of(df, "What is this?", images="q")
    assert count_prompts(df, images) == (4, 1, 0)


def test_the_command_has_every_option_of_prompt() -> None:
    """But those of ``ELSEWHERE``; a value that is given gets to ``PromptOptions`` as Python would pass it."""
    help_text = runner.invoke(app, ["run", "-h"], env={"COLUMNS": "400", "TERM": "dumb"}).output
    for name in (*OPTION_NAMES, *SamplingOptions.model_fields):
        assert (f"--{name.replace('_', '-')}" in help_text) == (name not in ELSEWHERE or name in ("files", "on_error"))
    given: dict[str, Any] = {}
    taken = with_prompt_options(lambda given: seen.append(given))
    seen: list[dict[str, Any]] = []
    command = typer.Typer()
    command.command()(taken)
    args = ["--top-p", "0.5", "--seed", "3", "--stop", "a", "--stop", "b", "--logit-bias", '{"5": -1.5}', "--thinking"]
    args += ["--engines", "2", "--truncate-prompt-tokens", "-1", "--enforce", "validate", "--no-dedupe"]
    args += ["--examples", '[["1 + 1?", 2]]', "--engine-args", '{"dtype": "half"}', "--allowed-token-ids", "7"]
    result = runner.invoke(command, args)
    assert result.exit_code == 0, result.output
    given = options_of(seen[0])
    assert given == {
        "top_p": 0.5,
        "seed": 3,
        "stop": ["a", "b"],
        "logit_bias": {5: -1.5},
        "thinking": True,
        "max_concurrency": 2,
        "truncate_prompt_tokens": -1,
        "enforce": "validate",
        "dedupe": False,
        "examples": [("1 + 1?", 2)],
        "engine_args": {"dtype": "half"},
        "allowed_token_ids": [7],
    }
    options = PromptOptions.of(given)
    assert options.common_sampling.logit_bias == {5: -1.5}
    assert runner.invoke(command, []).exit_code == 0
    assert seen[1] == {}


def test_version_and_completion() -> None:
    assert runner.invoke(app, ["--version"]).output.startswith("daft-vllm 0.")
    assert runner.invoke(app, ["check", "-h"]).exit_code == 0
    assert "qwen3-8b" in complete_model("qwen3")
    assert "Qwen/Qwen3-8B" in complete_model("Qwen/")
    assert "short-job" in complete_goal("sh")
    assert "L4" in complete_card("l")


def test_a_folder_of_images_is_a_table(tmp_path: Path) -> None:
    for name in ("b.png", "sub/a.JPG", "notes.txt"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(b"x")
    table = read_input(str(tmp_path / "in"))
    assert table.df.to_pydict() == {"path": [str(tmp_path / "in/b.png"), str(tmp_path / "in/sub/a.JPG")]}
    assert (table.images, table.folders) == ("path", (str(tmp_path / "in"), str(tmp_path / "in/sub")))
    assert read_input(f"{tmp_path}/in/*.png").df.count_rows() == 1
    pq.write_table(pa.table({"a": [1]}), tmp_path / "in/t.parquet")
    with pytest.raises(OptionError, match=r"several kinds \(.parquet, .jpg, .png\): write"):
        read_input(str(tmp_path / "in"))


@pytest.fixture(scope="module")
def gemma3(smollm2: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    return shrunken.gemma3(smollm2, tmp_path_factory.mktemp("gemma3"), tokens=16)


def test_preview_of_a_folder_of_images(gemma3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images, sampling options, a blank prompt and the price, by a real run; nothing is written."""
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    for i in range(3):
        Image.new("RGB", (20 + i, 30), (40 * i, 90, 200)).save(f"in/{i}.png")
    Path("in/3.png").write_bytes(b"broken")
    done = run_cli(
        *("run", "--input", "in", "--prompt", "What is this?", "--preview", "4", "--model", gemma3, "--gpus", "0"),
        *("--max-tokens", "3", "--temperature", "0.7", "--top-p", "0.9", "--seed", "5", "--dollars-per-hour", "3600"),
        *("--engine-args", json.dumps(TINY_ARGS), "--on-error", "raise"),
    )
    assert "1 row has no answer" in done.stderr, done.stderr
    assert done.returncode == 1
    assert "nothing was written" in done.stderr
    assert "cost" in done.stderr
    assert "invalid_media" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
