"""The whole start of an engine on a GPU, until vLLM touches the device, which isn't there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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
                mask = process.environ().get("CUDA_VISIBLE_DEVICES")  # gone when the process writes its title there
                seen[process.pid] = (process.name(), mask or seen.get(process.pid, (None, None))[1])
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
    left = [process.name() for process in psutil.Process().children(recursive=True)]
    print(json.dumps({"error": error, "seconds": seconds, "seen": list(seen.values()), "left": left}))
"""


def start(cards: str | None, mask: str | None = None, **options: Any) -> dict[str, Any]:
    environment = {
        name: value for name, value in os.environ.items() if name not in ("FAKE_GPUS", "CUDA_VISIBLE_DEVICES")
    }
    if cards is not None:
        environment["FAKE_GPUS"] = cards
    if mask is not None:
        environment["CUDA_VISIBLE_DEVICES"] = mask
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
def test_the_core_gets_the_gpu_that_is_free(cards: str, mask: str | None, expected: str) -> None:
    found = start(cards, mask, gpus=1)
    assert {seen for name, seen in found["seen"] if name.startswith("VLLM::EngineCor")} == {expected}
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
