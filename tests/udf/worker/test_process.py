"""Whole scripts over more rows than one batch: a process of its own, the driver, Ray."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pickle
import pty
import re
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from daft import DataType

from daft_vllm.engine import EngineConfig, SamplingOptions
from daft_vllm.udf.answers.return_format import ReturnFormat
from daft_vllm.udf.worker.progress import read_progress, read_workers
from daft_vllm.udf.worker.spec import PromptSpec
from tests.conftest import TINY_ARGS
from tests.helpers import vllm_processes, wait_gone

SCRIPT = """
import json, sys
import daft
from daft import col
from typing import Literal
from pydantic import BaseModel
from daft_vllm import prompt

class Answer(BaseModel):
    kind: Literal["a", "b"]

# No "if __name__": vLLM's core doesn't import the script.
model, how, rows = sys.argv[1], sys.argv[2], int(sys.argv[3])
if how == "ray":
    import ray
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    daft.set_runner_ray()
prompts = ["Row " + str(i) for i in range(rows)]
prompts[rows // 2], prompts[rows // 3] = None, "word " * 3000
df = daft.from_pydict({"id": list(range(rows)), "q": prompts})
df = df.with_column(
    "a",
    prompt(col("q"), Answer, model=model, gpus=0, max_tokens=24, details=True, batch_size=750,
           use_process=True if how == "process" else "auto", engine_args=json.loads(sys.argv[4]),
           progress_folder=sys.argv[5]),
).collect()
out = df.to_pydict()
answers = dict(zip(out["id"], out["a"]))
print(json.dumps({
    "ids": sorted(out["id"]) == list(range(rows)),
    "in_order": out["id"] == list(range(rows)),
    "answers": sum(a["value"] is not None for a in answers.values()),
    "kinds": sorted({a["value"]["kind"] for a in answers.values() if a["value"]}),
    "errors": sorted((i, a["error"].split(":")[0]) for i, a in answers.items() if a["error"]),
    "not asked": [i for i, a in answers.items() if a["finish_reason"] == "null_prompt"],
    # Not getrusage: its peak is inherited from the process that started this one.
    "driver_mb": int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) // 1024,
    "torch": "torch" in sys.modules,
}))
"""


def kill_once(progress: Path, before: set[int], killed: list[int]) -> None:
    """Kill vLLM's processes, except those of ``before``, once rows are answered, and note them."""
    while not read_progress(str(progress))["done"]:
        time.sleep(0.05)
    for pid in vllm_processes() - before:
        os.kill(pid, signal.SIGKILL)
        killed.append(pid)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["process", "driver", "ray"])
def test_two_thousand_rows(tiny: str, tmp_path: Path, how: str) -> None:
    """Every id comes back, the bad rows are errors, nothing is left running; with processes the driver stays small.

    vLLM is killed on the way, except in the driver: see tests/engine/process/test_lifecycle.py.
    """
    before = vllm_processes()
    script = tmp_path / "job.py"
    script.write_text(SCRIPT, encoding="utf-8")
    source = "-" if how == "driver" else str(script)  # as in `python - <<EOF`
    progress = tmp_path / "progress"
    progress.mkdir()
    killed: list[int] = []
    if how != "driver":
        threading.Thread(target=kill_once, args=(progress, before, killed), daemon=True).start()
    done = subprocess.run(
        [sys.executable, source, tiny, how, "2000", json.dumps(TINY_ARGS), str(progress)],
        input=SCRIPT,
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.strip().splitlines()[-1])
    assert result["ids"]
    assert result["in_order"] or how != "process"
    assert result["answers"] == 1998
    assert result["errors"] == [[666, "prompt_too_long"]]
    assert result["not asked"] == [1000]
    counters = read_progress(str(progress))
    assert len(killed) == counters["restarts"] == (0 if how == "driver" else 1)
    assert counters["done"] == counters["rows"] == 2000
    ((path, worker),) = read_workers(str(progress)).items()
    assert path.name.startswith("ray-") == (how == "ray")
    assert sum(one["deaths"] for one in worker["engines"]) == len(killed)
    assert set(result["kinds"]) <= {"a", "b"}
    if how == "driver":
        assert result["torch"]  # vLLM's front end
        assert result["driver_mb"] < 2048
    else:
        assert result["driver_mb"] < 1024
        assert not result["torch"]
    assert wait_gone(vllm_processes() - before) == []


CLEAN = """
import json, sys, daft
from daft import col
from daft_vllm import close_engines, prompt
for use_process in (False, True):
    answers = prompt(col("q"), ["yes", "no"], model=sys.argv[1], engine_args=json.loads(sys.argv[2]), gpus=0,
                     use_process=use_process)
    print(set(daft.from_pydict({"q": ["a", "b"]}).with_column("a", answers).to_pydict()["a"]) <= {"yes", "no"})
    close_engines()
"""


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A temporary folder with a short name: vLLM has sockets in it."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.mark.slow
def test_a_terminal_shows_our_lines_only(tiny: str, tmp_path: Path, short_folder: Path) -> None:
    """In the driver and with a process, without a word of vLLM, torch and Daft, and no log is left."""
    (tmp_path / "clean.py").write_text(CLEAN, encoding="utf-8")
    wanted = ("VLLM_LOGGING_LEVEL", "DAFT_PROGRESS_BAR")
    environment = {name: value for name, value in os.environ.items() if name not in wanted}
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "clean.py"), tiny, json.dumps(TINY_ARGS)],
        env={**environment, "TMPDIR": str(short_folder), "TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    screen = b""
    with contextlib.suppress(OSError):  # the end
        while part := os.read(ours, 65536):
            screen += part
    os.close(ours)
    assert process.wait(timeout=60) == 0, screen.decode()
    lines = [line.strip() for line in re.split(r"[\r\n]+", re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", screen.decode()))]
    bar = re.compile(r"[\u2800-\u28ff]? *━[━╸╺]* (loading|\d+/2 rows)")
    assert [line for line in lines if line and not bar.match(line)] == ["True", "True"]
    assert sum("loading" in line for line in lines) > 2, "it shows progress"
    assert not list(short_folder.glob("daft-vllm-*"))


def test_spec_and_formats_pickle() -> None:
    spec = PromptSpec(
        engine=EngineConfig("somewhere", {"max_model_len": 10}),
        sampling=SamplingOptions(stop=["x"], logit_bias={3: 1.0}),
        format=ReturnFormat.of({"type": "object", "properties": {"a": {"type": "string"}}}),
        chat_template_kwargs={"enable_thinking": False},
    )
    again = pickle.loads(pickle.dumps(spec))
    assert again == spec
    assert again.dtype == DataType.struct({"a": DataType.string()})


def test_import_is_quick_and_light() -> None:
    """In a clean process: neither torch nor vllm nor daft, in under a second."""
    code = textwrap.dedent(
        """
        import sys, time
        started = time.perf_counter()
        import daft_vllm
        seconds = time.perf_counter() - started
        assert not {"torch", "vllm", "transformers", "daft"} & set(sys.modules), sorted(sys.modules)
        assert seconds < 1, seconds
        assert daft_vllm.__all__ == sorted(daft_vllm.__all__)
        for name in daft_vllm.__all__:
            getattr(daft_vllm, name)
        assert "torch" not in sys.modules and "vllm" not in sys.modules
        """
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
