"""What the commands show on a screen beside their tables."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from daft_vllm.cli import app
from daft_vllm.cli.summary import summary_table
from daft_vllm.cli.terminal import as_flags
from daft_vllm.job import PromptCounts, Summary
from daft_vllm.model_configs import known_models

runner = CliRunner()
COMMANDS = ("run", "check", "config", "models", "plan", "tune", "demo")


@pytest.mark.parametrize(
    "command", [["models", "--gpu", "L4", "--takes", "image"], ["config", "mistral-small-3.2-24b"]]
)
def test_no_library_says_anything(command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from daft_vllm.cli import app; app()", *command],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stderr == ""


def shown(*command: str, columns: int) -> str:
    """What a command prints on a terminal as wide as that, in a process of its own."""
    code = "from daft_vllm.cli import app; app()"
    return subprocess.run(
        [sys.executable, "-c", code, *command],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={**os.environ, "COLUMNS": str(columns), "TERMINAL_WIDTH": str(columns)},
    ).stdout


@pytest.mark.parametrize("columns", [80, 124, 125])
def test_help_cuts_no_name_and_shows_no_limit_of_an_integer(columns: int) -> None:
    for command in ("run", "check"):
        text = shown(command, "-h", columns=columns)
        assert "…" not in text
        assert "2147483648" not in text
        assert "-9223372036" not in text
        for name in ("--system-message", "--recommended-sampling", "--no-spaces-between-special-tokens"):
            assert name in text


def test_the_list_of_models_cuts_no_name() -> None:
    text = shown("models", "--gpu", "L4", columns=80)
    assert all(f" {name} " in text for name in known_models())


def test_the_nearest_option_is_told() -> None:
    result = runner.invoke(app, ["run", "--max-token", "3"])
    assert result.exit_code == 2
    assert "No such option: --max-token. Did you mean --max-tokens?" in " ".join(result.output.split())
    assert "Possible options" not in result.output


def test_nothing_is_loading_before_mistakes_are_told(tmp_path: Path) -> None:
    table = tmp_path / "in.csv"
    table.write_text("q\na\n")
    asked = ["run", "--input", str(table), "--output", str(tmp_path / "out.csv"), "--prompt", "{q}", "--gpus", "0"]
    for wrong in (["--model", "./nothing"], ["--column", "q"], ["--choices", "yes,yes"], ["--max-tokens", "0"]):
        result = runner.invoke(app, [*asked, *wrong])
        assert result.exit_code == 1
        assert "loading" not in result.output
        assert "error: " in result.output


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpus=4 fits; so does", "--gpus 4 fits; so does"),
        ("pass chat_template=, or pass apply_chat_template=False if", "pass --chat-template, or pass "),
        ("write engine_args={'max_model_len': 5}.", "write --engine-args '{\"max_model_len\": 5}'."),
        ("pass truncate_prompt_tokens=-1.", "pass --truncate-prompt-tokens -1."),
        ("temperature=0.5, then", "--temperature 0.5, then"),
        ('max_tokens=col("limit")', 'max_tokens=col("limit")'),
        ("engine_args: max_model_len=5 is", "engine_args: max_model_len=5 is"),
        ("engine_args={...}", "engine_args={...}"),
    ],
)
def test_messages_have_the_commands_words(text: str, expected: str) -> None:
    assert as_flags(text).startswith(expected)


def test_a_summary_leaves_out_what_did_not_happen() -> None:
    summary = Summary(
        rows=30,
        failed=0,
        seconds=36.0,
        prompt_tokens=100,
        cached_tokens=0,
        completion_tokens=10,
        drafted_tokens=0,
        accepted_tokens=0,
        optimal_tokens=100,
        stored=0,
        retried=0,
        duplicates=0,
        mean_running=3.0,
        preemptions=0,
        restarts=2,
        busy_seconds=9.0,
        queue_seconds=0.0,
        notes={},
    )
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(summary_table(summary, "o", counts=PromptCounts(30, 0, 1), dollars_per_hour=100.0))
    rows = dict(re.findall(r"│ (.*?) +│ (.*?) +│", console.export_text()))
    assert rows == {
        "rows": "30",
        "rows that failed": "0",
        "rows with a blank text, asked": "1",
        "seconds, load included": "36.0",
        "cost, load included": "$1.0000, $33.3333 per 1,000 rows",
        "cost without the load": "$0.2500, $8.3333 per 1,000 rows",
        "prompt tokens": "100",
        "prompt tokens computed": "100; at best 100",
        "completion tokens": "10",
        "sequences at once, on average": "3.0",
        "times that vLLM died and was started again": "2",
        "seconds with rows in vLLM": "9.0",
    }
