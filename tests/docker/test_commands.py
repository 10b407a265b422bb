"""Every command line in `docker/` is one that the command takes, and fits the file that it is in."""

from __future__ import annotations

from typing import Any

import pytest
from typer.main import get_command

from daft_vllm.cli import app
from daft_vllm.cli.options import options_of
from daft_vllm.cli.stopping.store import check_resume
from daft_vllm.udf.options import OPTION_NAMES, PromptOptions
from tests.docker.files import command_lines, documents, text

LINES = [(name, line) for name, lines in command_lines().items() for line in lines]
RUNS = [(name, line) for name, line in LINES if line[0] == "run"]


def parsed(line: list[str]) -> dict[str, Any]:
    """The options of a command line, as the command itself reads them. Nothing is run."""
    group = get_command(app)
    command = group.commands[line[0]]  # type: ignore[attr-defined]
    return dict(command.make_context(line[0], line[1:]).params)


def test_command_lines_are_found_in_every_file() -> None:
    assert {name: len(lines) for name, lines in command_lines().items()} == {
        "job.yaml": 1,
        "rayjob.yaml": 1,
        "skypilot.yaml": 1,
        "slurm.sh": 1,
        "README.md": 3,
    }


def test_an_option_that_does_not_exist_is_found() -> None:
    with pytest.raises(Exception, match="No such option: --enginez"):
        parsed(["run", "--input", "a.csv", "--prompt", "{a}", "--enginez", "2"])


@pytest.mark.parametrize(("name", "line"), LINES, ids=[f"{name}-{line[0]}" for name, line in LINES])
def test_the_command_takes_the_line(name: str, line: list[str]) -> None:
    assert parsed(line)


@pytest.mark.parametrize(("name", "line"), RUNS, ids=[name for name, _ in RUNS])
def test_values_are_those_that_prompt_takes(name: str, line: list[str]) -> None:
    found = parsed(line)
    given = {one: found[one] for one in OPTION_NAMES if one in found and found[one] not in (None, [], ())}
    assert PromptOptions.of(options_of(given)).model == "Qwen/Qwen3-8B"
    assert "{text}" in found["prompt"]


@pytest.mark.parametrize(("name", "line"), RUNS, ids=[name for name, _ in RUNS])
def test_the_same_line_goes_on(name: str, line: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A local output with --resume; a URL, which --resume would refuse once files are there, with a store."""
    found = parsed(line)
    on_ray = name == "rayjob.yaml" or found["output"].startswith("s3://your-bucket")
    monkeypatch.setattr("daft_vllm.cli.stopping.store._is_local", lambda: not on_ray)
    output = found["output"].replace("$BUCKET", "s3://bucket/reviews")
    check_resume(output, found["store"], keep=not found["no_store"], resume=found["resume"])
    if "://" in output:
        assert found["overwrite"]
        assert not found["resume"]
        assert found["store"] is not None
    else:
        assert found["resume"]
        assert not found["overwrite"]
        assert found["store"] is not None or not on_ray


def test_engines_fit_the_gpus() -> None:
    lines = {name: parsed(line) for name, line in RUNS if name != "README.md"}
    (rayjob,), (aws,) = documents("rayjob.yaml"), documents("ray-aws.yaml")
    (workers,) = rayjob["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert workers["minReplicas"] == workers["replicas"] == workers["maxReplicas"]
    limits = workers["template"]["spec"]["containers"][0]["resources"]["limits"]
    gpus = workers["replicas"] * int(limits["nvidia.com/gpu"])
    assert int(lines["rayjob.yaml"]["max_concurrency"]) * lines["rayjob.yaml"]["gpus"] == gpus
    assert lines["rayjob.yaml"]["gpus"] is not None, "the head has no GPU to go by"
    assert "#SBATCH --gpus-per-node=4\n" in text("slurm.sh")
    assert int(lines["slurm.sh"]["max_concurrency"]) * lines["slurm.sh"]["gpus"] == 4
    (on_aws,) = [parsed(line) for name, line in RUNS if name == "README.md" and "--engines" in line]
    gpu = aws["available_node_types"]["gpu"]
    assert gpu["min_workers"] == gpu["max_workers"] == aws["max_workers"] == int(on_aws["max_concurrency"])
    for one in ("job.yaml", "skypilot.yaml"):
        assert lines[one]["max_concurrency"] is None
