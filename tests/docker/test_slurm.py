"""slurm.sh, with stand-ins for srun, scontrol and the command: signals, exit statuses, and when it is queued again."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.docker.files import FOLDER

SRUN = """#!/bin/bash
# As srun: signals go to the command, and its exit status is srun's.
while [[ $1 == --* ]]; do shift; done
"$@" & command=$!
trap 'kill -TERM $command' TERM
wait $command; status=$?
while kill -0 $command 2> /dev/null; do wait $command; status=$?; done
exit $status
"""
SCONTROL = '#!/bin/bash\necho "$@" >> "$LOG/scontrol"\n'
COMMAND = """#!/bin/bash
printf '%s\\n' "$@" > "$LOG/arguments"
printf '%s\\n' "$HF_HOME" "$VLLM_CACHE_ROOT" "$DAFT_VLLM_CACHE" > "$LOG/folders"
trap 'echo SIGTERM >> "$LOG/signals"; sleep 0.3; exit $ENDS_WITH' TERM
touch "$LOG/runs"
for _ in $(seq $STEPS); do sleep 0.05; done
exit $ENDS_WITH
"""


def started(tmp_path: Path, ends_with: int, steps: int = 400) -> subprocess.Popen[bytes]:
    programs = tmp_path / "venv" / "bin"
    programs.mkdir(parents=True)
    for name, script in (("srun", SRUN), ("scontrol", SCONTROL), ("daft-vllm", COMMAND)):
        (programs / name).write_text(script)
        (programs / name).chmod(0o755)
    mine = {"LOG": str(tmp_path), "ENDS_WITH": str(ends_with), "STEPS": str(steps), "SLURM_JOB_ID": "17"}
    more = {"DAFT_VLLM": str(programs.parent), "DATA": "/shared/reviews", "CACHE": "/shared/cache"}
    process = subprocess.Popen(
        ["bash", FOLDER / "slurm.sh"], env={**os.environ, **mine, **more}, start_new_session=True
    )
    until = time.monotonic() + 20
    while not (tmp_path / "runs").exists():
        assert time.monotonic() < until
        time.sleep(0.02)
    return process


def queued_again(tmp_path: Path) -> str:
    log = tmp_path / "scontrol"
    return log.read_text() if log.exists() else ""


@pytest.mark.parametrize("status", [0, 1])
def test_it_ends_as_the_command_does(tmp_path: Path, status: int) -> None:
    assert started(tmp_path, status, steps=2).wait(20) == status
    assert queued_again(tmp_path) == ""
    arguments = (tmp_path / "arguments").read_text().splitlines()
    assert arguments[arguments.index("--prompt") + 1] == "Summarise in one sentence: {text}"
    assert arguments[arguments.index("--output") + 1] == "/shared/reviews/answers.parquet"
    folders = (tmp_path / "folders").read_text().splitlines()
    assert folders == [f"/shared/cache/{one}" for one in ("huggingface", "vllm", "daft-vllm")]


@pytest.mark.parametrize(("status", "queued"), [(143, "requeue 17\n"), (0, ""), (1, "")])
def test_when_its_time_is_over_it_is_queued_again_if_rows_are_left(tmp_path: Path, status: int, queued: str) -> None:
    process = started(tmp_path, status)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(20) == status
    assert (tmp_path / "signals").read_text() == "SIGTERM\n", "a second one would drop the rows inside vLLM"
    assert queued_again(tmp_path) == queued


def test_one_that_scancel_ends_stays_ended(tmp_path: Path) -> None:
    """The command gets SIGTERM, and this script no signal."""
    process = started(tmp_path, 143)
    found = subprocess.run(["pgrep", "-g", str(process.pid), "-f", "bin/daft-vllm"], capture_output=True, text=True)
    os.kill(int(found.stdout.split()[-1]), signal.SIGTERM)
    assert process.wait(20) == 143
    assert queued_again(tmp_path) == ""
