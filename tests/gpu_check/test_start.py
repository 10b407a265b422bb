"""The whole start of an engine on a GPU, until vLLM touches the device, which isn't there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu_check.cards import fake_gpus

SCRIPT = """
import json, sys, threading, time
import daft, psutil
from daft import col
from daft_vllm import prompt
options = json.loads(sys.argv[1])
seen, over = {}, threading.Event()
def watch():
    while not over.wait(0.05):
        for process in psutil.Process().children(recursive=True):
            try:
                seen[process.pid] = process.name()
            except psutil.Error:
                pass
if __name__ == "__main__":
    thread = threading.Thread(target=watch)
    thread.start()
    df = daft.from_pydict({"q": ["hi", "there"]})
    import daft_vllm.udf.worker.opening  # the imports take no part in the time
    started, error = time.monotonic(), None
    try:
        df.select(prompt(col("q"), max_tokens=4, **options)).to_pydict()
    except Exception as e:
        error = f"{type(e).__name__}: {e}"
    seconds = time.monotonic() - started
    over.set()
    thread.join()
    left = [" ".join(process.cmdline()) for process in psutil.Process().children(recursive=True)]
    left = [line for line in left if "multiprocessing.resource_tracker" not in line]  # Python's own
    print(json.dumps({"error": error, "seconds": seconds, "seen": seen, "left": left}))
"""


def start(cards: str | None, mask: str | None = None, noted: Path | None = None, **options: Any) -> dict[str, Any]:
    environment = {
        name: value for name, value in os.environ.items() if name not in ("FAKE_GPUS", "CUDA_VISIBLE_DEVICES")
    }
    if cards is not None:
        environment["FAKE_GPUS"] = cards
    if mask is not None:
        environment["CUDA_VISIBLE_DEVICES"] = mask
    if noted is not None:
        environment |= {"NOTED_MASKS": str(noted), "PYTHONPATH": str(Path(__file__).with_name("site"))}
    command = [sys.executable, "-c", SCRIPT, json.dumps(options)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=350, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("cards", "mask", "expected"),
    [
        (fake_gpus("l4", "l4"), None, "0"),
        (fake_gpus("l4", "l4", free={0: 1.0}), None, "1"),
        (fake_gpus("l4", "l4", "l4"), "2,1", "2"),
    ],
)
def test_the_core_gets_the_gpu_that_is_free(cards: str, mask: str | None, expected: str, tmp_path: Path) -> None:
    found = start(cards, mask, tmp_path / "masks", gpus=1)
    masks = dict(line.split(" ", 1) for line in (tmp_path / "masks").read_text(encoding="utf-8").splitlines())
    cores = [pid for pid, name in found["seen"].items() if name.startswith("VLLM::EngineCor")]
    assert cores
    assert {masks[pid] for pid in cores} == {expected}
    assert found["error"].startswith("EngineStartError"), found["error"]
    assert "out of bounds for 0 devices" in found["error"], "the cause, from the log of vLLM's process"
    assert found["left"] == []


@pytest.mark.parametrize("cards", ["", None])
@pytest.mark.parametrize("gpus", [1, 0.5, 3, None])
def test_without_a_gpu_it_is_an_error_at_once(cards: str | None, gpus: float | None) -> None:
    found = start(cards, gpus=gpus)
    assert "NVIDIA's driver" in found["error"], found["error"]
    assert "max_concurrency" not in found["error"]
    assert found["seconds"] < 20, "no engine was started"
    assert found["left"] == []


def test_heads_that_two_gpus_can_not_share() -> None:
    found = start(fake_gpus("l4", "l4"), gpus=2)
    assert "9 attention heads" in found["error"], found["error"]
    assert found["seconds"] < 60
