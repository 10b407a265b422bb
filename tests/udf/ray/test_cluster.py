"""Engines on a Ray cluster of several nodes. Only the engine's opening is replaced where a GPU would be needed."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from tests.udf.ray.conftest import Run

ENGINES = """
import json, os, sys, time
from concurrent.futures import Future
import daft
from daft import col
from daft_vllm import prompt
from daft_vllm.engine import EngineStats, Outcome
from daft_vllm.udf.worker import expression

def with_masks():
    # Defined inside a function, so that it is pickled by value: the workers don't have this script.
    from daft_vllm.udf.worker.actor import PromptActor

    class Engine:
        is_over = False

        def takes(self, kind):
            return False

        def stats(self):
            return EngineStats()

        def submit(self, requests, **options):
            import os, ray, time
            time.sleep(0.1)
            said = f"{ray.get_runtime_context().get_node_id()} {os.environ.get('CUDA_VISIBLE_DEVICES')} {os.getpid()}"
            future = Future()
            future.set_result([Outcome(text=said, finish_reason="stop") for _ in requests])
            return future

    class Masked(PromptActor):
        def _opened(self):
            return Engine()

    return Masked

expression.PromptActor = with_masks()
for given in json.loads(sys.argv[1]):
    os.environ["DAFT_VLLM_RAY_GROWS"] = given.pop("grows", "")
    daft.set_execution_config(actor_udf_ready_timeout=given.pop("ready", 120))
    df = daft.from_pydict({"q": [f"Row {i}" for i in range(64)]}).into_partitions(8)
    out = df.with_column("a", prompt(col("q"), batch_size=4, **given)).to_pydict()
    print(json.dumps(sorted(set(out["a"]))))
"""


def test_each_engine_has_gpus_of_its_own(cluster: str, run: Run) -> None:
    """Four engines on two nodes have four pairs of node and mask. An engine of two GPUs has both of a node. Two engines
    of half a GPU share one. Of three engines of which two don't fit, where nodes may join, Daft waits as long as it is
    told to, and the one that came answers all rows.
    """
    pair, single = {"resources": {"pair": 0.1}}, {"resources": {"single": 0.1}}
    asked: list[dict[str, Any]] = [
        {"gpus": 1, "max_concurrency": 4, "ray_options": pair},
        {"gpus": 2, "max_concurrency": "auto", "model": "qwen3-0.6b"},
        {"gpus": 0.5, "max_concurrency": 2, "ray_options": single},
        {"gpus": 1, "max_concurrency": 3, "ray_options": single, "grows": "1", "ready": 5},
    ]
    done = run(ENGINES, json.dumps(asked), address=cluster)
    assert done.returncode == 0, done.stderr[-3000:]
    seen = [[said.split() for said in json.loads(line)] for line in done.stdout.splitlines() if line.startswith("[")]
    whole, twice, shared, alone = seen
    assert len({(node, mask) for node, mask, _ in whole}) == 4
    assert len({node for node, *_ in whole}) == 2
    assert {mask for _, mask, _ in whole} == {"0", "1"}
    assert sorted(mask for _, mask, _ in twice) == ["0,1", "0,1"]
    assert len({process for *_, process in shared}) == 2
    assert len({(node, mask) for node, mask, _ in shared}) == 1
    assert len(alone) == 1
    assert "room for 1. Daft waits up to 5 s for nodes" in done.stderr


REFUSED = """
import json, sys, time
import daft
from daft import col
from daft_vllm import prompt
from daft_vllm.errors import DaftVLLMError

given = json.loads(sys.argv[1])
began = time.monotonic()
try:
    daft.from_pydict({"q": ["a"]}).with_column("a", prompt(col("q"), **given)).collect()
except DaftVLLMError as e:
    print(json.dumps([type(e).__name__, str(e), time.monotonic() - began]))
"""


@pytest.mark.parametrize(
    ("given", "on_ray", "message"),
    [
        ({"gpus": 1, "max_concurrency": 6}, True, "6 engines of 1 GPU need 6 GPUs; the cluster has 5 GPUs on 3 nodes"),
        ({"gpus": 0, "max_concurrency": 6}, False, "6 engines need a CPU core each"),
    ],
)
def test_too_many_engines_are_an_error_within_ten_seconds(
    cluster: str, run: Run, given: dict[str, Any], on_ray: bool, message: str
) -> None:
    """The script's first line of Daft's connects to Ray, which counts too."""
    if not on_ray and (os.cpu_count() or 1) >= 6:
        pytest.skip("this machine has six cores")
    done = run(REFUSED, json.dumps(given), address=cluster if on_ray else None)
    kind, said, seconds = json.loads(done.stdout.splitlines()[-1])
    assert kind == "DeviceError"
    assert message in said
    assert seconds < 10


SMALL = """
import time
import daft, ray
from daft import col
from daft_vllm import prompt
from daft_vllm.errors import DeviceError

ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
daft.set_runner_ray()
began = time.monotonic()
try:
    daft.from_pydict({"q": ["a"]}).with_column("a", prompt(col("q"), gpus=0, max_concurrency=6)).collect()
except DeviceError as e:
    print(time.monotonic() - began < 10, e)
"""


def test_six_engines_of_two_cpus(run: Run) -> None:
    done = run(SMALL)
    assert done.stdout.startswith("True 6 engines of 1 CPU need 6 CPUs; the cluster has 2 CPUs on 1 node: pass max_c")


RUN = ("run", "--input", "t.csv", "--prompt", "{q}", "--gpus", "0", "--output", "a.jsonl")


def test_the_command_asks_the_cluster(cluster: str, run: Run, tmp_path: Path) -> None:
    """There too many engines are an error before anything is started. There is a store only if it is named."""
    (tmp_path / "t.csv").write_text("q\nOne\nTwo\n", encoding="utf-8")
    done = run(None, *RUN, "--ray", cluster, "--engines", "7")
    assert done.returncode == 1, done.stderr
    assert "7 engines of 1 CPU need 7 CPUs; the cluster has 6 CPUs on 3 nodes: pass --max-concurrency 6." in done.stderr
    assert not (tmp_path / "a.jsonl.answers-store").exists()


def test_an_address_at_which_nobody_answers(run: Run, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("q\nOne\n", encoding="utf-8")
    with socket.socket() as unused:  # bound, but it doesn't listen
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        began = time.monotonic()
        done = run(None, *RUN, "--ray", address)
    assert done.returncode == 1
    assert f"no Ray cluster answers at '{address}' (Connection refused): look whether ray status says" in done.stderr
    assert time.monotonic() - began < 15
