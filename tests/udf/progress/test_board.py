"""Counters on Ray: from a worker on any node to a folder of the driver, and the wish to stop on the way back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from daft_vllm.udf.progress.board import Board

SCRIPT = """
import json, sys, time
from pathlib import Path
import ray
from daft_vllm.udf.progress.board import collect_into, collect_now
from daft_vllm.udf.worker.progress import BoardChannel, channel_of, is_stopped, read_progress

folder = Path(sys.argv[1])

def soon(what, seconds=20):
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found

board = collect_into(str(folder))  # before Ray is there
assert "ray" in sys.modules and not ray.is_initialized()
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)

@ray.remote(num_cpus=1)
class Worker:
    def start(self, board):
        self.board = board
        self.channel = soon(lambda: channel_of("/nowhere", board))
    def send(self, done):
        self.channel.send(json.dumps({"done": done, "engines": []}), wait=True)
    def state(self):
        self.channel.send(json.dumps({"done": 9}))
        return self.channel.is_over, self.channel.stop_seconds(), is_stopped(None, self.board)
    def say_stopped(self):
        self.channel.say_stopped()
    def send_to_nobody(self):
        began = time.monotonic()
        for _ in range(20):
            self.channel.send("{}", wait=True)
        return time.monotonic() - began, self.channel.is_over, channel_of(None, self.board) is None

worker = Worker.remote()
ray.get(worker.start.remote(board))
for done in (1, 7):
    ray.get(worker.send.remote(done))
    collect_now(str(folder))  # what a worker has sent with wait=True is there
    assert read_progress(str(folder))["done"] == done
(path,) = folder.glob("*.json")
assert path.name.startswith("ray-")
assert ray.get(worker.state.remote()) == (False, None, False)
(folder / "stop").write_text("3.5")
soon(lambda: ray.get(worker.state.remote()) == (False, 3.5, True))
ray.get(worker.say_stopped.remote())
soon(path.with_suffix(".stopped").exists)
path.unlink()  # nobody wants this worker's counters any more
soon(lambda: ray.get(worker.state.remote())[0])
time.sleep(0.6)
assert not path.exists()

again = Worker.remote()
ray.kill(worker)
ray.get(again.start.remote(board))
ray.kill(ray.get_actor(board, namespace="daft-vllm"))
seconds, is_over, no_channel = ray.get(again.send_to_nobody.remote())
assert is_over and no_channel and seconds < 3, seconds
print("all right")
"""


def test_a_board_passes_on_each_report_once() -> None:
    board = Board()
    assert board.report("a", "1") == (False, None)
    assert board.report("b", "2") == (False, None)
    seen, reports, stopped = board.exchange(0, [], None)
    assert (reports, set(stopped)) == ({"a": "1", "b": "2"}, set())
    board.report("a", "3")
    assert board.exchange(seen, [], None)[1] == {"a": "3"}
    assert board.exchange(seen, [], None)[1] == {"a": "3"}, "the answer before may have been lost"
    seen = board.exchange(seen, ["a"], 2.5)[0]
    assert board.report("a", "4") == (True, 2.5)
    assert board.exchange(seen, [], 2.5)[1] == {}
    assert board.asked_to_stop() == 2.5


def test_counters_wishes_and_a_board_that_is_gone(tmp_path: Path) -> None:
    """With a real Ray cluster, and workers without engines."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    folder = tmp_path / "progress"
    folder.mkdir()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, str(script), str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment,
    )
    assert "all right" in done.stdout, done.stderr[-3000:]
