"""``store=``: a query that is run again computes what it has no answer to, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import daft
import psutil
import pytest
from daft import col
from typer.testing import CliRunner

from benchmarks.parts.kills import stored
from daft_vllm import prompt
from daft_vllm.cli import app
from daft_vllm.engine.setup.guardian import kill_processes
from daft_vllm.errors import OptionError, StoreError
from tests.conftest import ENGINE_ARGS
from tests.udf.store import WORDS, answers


def test_a_second_run_computes_only_new_rows(engine: object, smollm2: str, tmp_path: Path, asked: list[int]) -> None:
    first = answers(WORDS[:20], tmp_path / "s", smollm2)
    assert asked == [20]
    assert stored(tmp_path / "s") == 20
    assert answers(WORDS[10:40], tmp_path / "s", smollm2)[:10] == first[10:]
    assert asked == [20, 20]
    assert answers(WORDS, tmp_path / "s", smollm2)[:20] == first
    assert asked == [20, 20]


def test_sampled_rows_get_the_answers_that_they_got(
    engine: object, smollm2: str, tmp_path: Path, asked: list[int]
) -> None:
    same = ["Write a word."] * 12
    first = answers(same, tmp_path / "s", smollm2, temperature=1.5, max_tokens=8)
    assert len(set(first)) > 6
    assert sorted(answers(same, tmp_path / "s", smollm2, temperature=1.5, max_tokens=8)) == sorted(first)
    assert asked == [12]


def test_no_model_is_loaded_if_all_answers_are_there(
    engine: object, smollm2: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    format_ = {"return_format": ["yes", "no"], "details": True}
    first = answers(WORDS, tmp_path / "s", smollm2, **format_)

    def never(*_: object, **__: object) -> None:
        raise AssertionError("an engine was opened")

    monkeypatch.setattr("daft_vllm.udf.worker.actor.opened_engine", never)
    again = answers(WORDS, tmp_path / "s", smollm2, **format_)
    assert [row["value"] for row in again] == [row["value"] for row in first]
    assert [row["prompt_tokens"] for row in again] == [row["prompt_tokens"] for row in first]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"max_tokens": 7}, "max_tokens was '6', and is '7'"),
        ({"temperature": 0.5}, "temperature is '0.5', and was not given"),
        ({"return_format": ["a", "b"]}, "return_format is "),
        ({"system_message": "Be brief."}, "system_message is 'Be brief.', and was not given"),
        ({"engine_args": {**ENGINE_ARGS, "dtype": "bfloat16"}}, "dtype.* was '\"float32\"', and is '\"bfloat16\"'"),
    ],
)
def test_a_changed_job_is_refused_and_says_what_differs(
    engine: object, smollm2: str, tmp_path: Path, changed: dict[str, Any], said: str
) -> None:
    options: dict[str, Any] = {"model": smollm2, "gpus": 0, "engine_args": ENGINE_ARGS, "store": str(tmp_path / "s")}
    answers(["one"], tmp_path / "s", smollm2)
    prompt(col("q"), max_tokens=6, details=True, max_restarts=9, **options)  # answers don't depend on these
    with pytest.raises(StoreError, match=said):
        prompt(col("q"), **{"max_tokens": 6, **options, **changed})
    prompt(col("q"), store_changed=True, **{"max_tokens": 6, **options, **changed})


def test_prompts_that_are_made_by_functions_and_other_prompts(
    engine: object, smollm2: str, tmp_path: Path, asked: list[int]
) -> None:
    """Daft gives a function another name in each run."""

    @daft.func
    def shout(text: str) -> str:
        return text.upper()

    common: dict[str, Any] = {"model": smollm2, "gpus": 0, "use_process": False, "engine_args": ENGINE_ARGS}
    found = []
    for _ in range(2):
        first = prompt(shout(col("q")), max_tokens=4, store=str(tmp_path / "first"), **common)
        second = prompt(first, max_tokens=4, store=str(tmp_path / "second"), **common)
        found.append(daft.from_pydict({"q": ["a", "b"]}).select(second.alias("a")).to_pydict()["a"])
    assert found[0] == found[1]
    assert asked == [2, 2]


def test_a_row_without_a_prompt_needs_no_engine(engine: object, smollm2: str, tmp_path: Path, asked: list[int]) -> None:
    rows: list[Any] = ["one", None, "two"]
    first = answers(rows, tmp_path / "s", smollm2, details=True)
    second = answers(rows, tmp_path / "s", smollm2, details=True)
    assert [row["value"] for row in second] == [row["value"] for row in first]
    assert [row["finish_reason"] for row in first][1] == "null_prompt"
    assert asked == [2]


def test_conversations_formats_and_retries_are_stored_too(
    engine: object, smollm2: str, tmp_path: Path, asked: list[int]
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    options: dict[str, Any] = {"return_format": schema, "max_tokens": 2, "retries": 1, "details": True}
    options["examples"] = [("one", {"a": "two"})]
    first = answers(WORDS[:4], tmp_path / "s", smollm2, **options)
    rows = list(asked)
    assert 4 in rows
    assert sum(rows) > 5, "some were cut off, and asked again"
    second = answers(WORDS[:4], tmp_path / "s", smollm2, **options)
    assert [row["value"] for row in second] == [row["value"] for row in first]
    assert asked == rows


def test_a_store_under_a_url(engine: object, smollm2: str, tmp_path: Path, asked: list[int]) -> None:
    url: Any = f"file://{tmp_path}/s"
    first = answers(WORDS[:12], url, smollm2)
    assert answers(WORDS[:16], url, smollm2)[:12] == first
    assert asked == [12, 4]
    shown = CliRunner().invoke(app, ["show", url, "--json"])
    assert json.loads(shown.output)["counters"]["rows"] == 16
    page = CliRunner().invoke(app, ["report", url, "--output", str(tmp_path / "page.html")])
    assert page.exit_code == 0, page.output
    refused = CliRunner().invoke(app, ["retry", url, "--max-tokens", "9"], env={"COLUMNS": "200"})
    assert "not kept in a store under a URL" in " ".join(refused.output.split())


def test_folders_that_cannot_be_a_store(tmp_path: Path, smollm2: str) -> None:
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(StoreError, match="holds other files"):
        prompt(col("q"), model=smollm2, store=str(tmp_path))
    with pytest.raises(StoreError, match="the store nowhere://bucket/store can't be reached"):
        prompt(col("q"), model=smollm2, store="nowhere://bucket/store")
    with pytest.raises(StoreError, match="can't be made"):
        prompt(col("q"), model=smollm2, store=str(tmp_path / "mine.txt" / "s"))
    with pytest.raises(OptionError, match="a URL without keys") as caught:
        prompt(col("q"), model=smollm2, store="s3://AKIAABCDEFGHIJKLMNOP:secretsecretsecretsecret@bucket/store")
    assert "secretsecret" not in str(caught.value)


SCRIPT = """
import sys
import daft
from daft import col, lit

from daft_vllm import prompt
if __name__ == "__main__":
    df = daft.from_pydict({"id": list(range(200)), "q": [f"Write about {i}." for i in range(200)]})
    answer = prompt(
        col("q"), model=sys.argv[1], gpus=0, use_process=sys.argv[4] != "driver", max_tokens=16, ignore_eos=True,
        engine_args={"max_model_len": 512, "kv_cache_memory_bytes": 256 << 20, "dtype": "float32", "max_num_seqs": 16},
        store=sys.argv[2], details=True,
    )
    df.select("id", answer.alias("a")).sort("id").write_parquet(sys.argv[3])
"""


@pytest.mark.parametrize(
    "process", ["process", *(pytest.param(one, marks=pytest.mark.slow) for one in ("driver", "ray"))]
)
def test_a_job_that_was_killed_goes_on(smollm2: str, tmp_path: Path, process: str) -> None:
    """It is killed at once, with all of its processes, in the middle of its one batch."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    store = tmp_path / "s"
    command = [sys.executable, str(script), smollm2, str(store), str(tmp_path / "out"), process]
    env = {**os.environ, "DAFT_RUNNER": "ray" if process == "ray" else "native"}
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": env}
    running = subprocess.Popen(command, start_new_session=True, **quiet)
    deadline = time.monotonic() + 300
    while stored(store) <= 30:
        assert running.poll() is None, "it ended by itself"
        assert time.monotonic() < deadline
        time.sleep(0.1)
    kill_processes([psutil.Process(running.pid)])
    running.wait()
    kept = stored(store)
    assert 30 < kept < 200
    subprocess.run(command, check=True, **quiet)
    assert stored(store) == 200, "no row was computed twice"
    found = daft.read_parquet(str(tmp_path / "out")).sort("id").to_pydict()
    assert found["id"] == list(range(200))
    assert all(row["error"] is None and row["value"] for row in found["a"])
