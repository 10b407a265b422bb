"""Engines on a Ray cluster of several nodes. Only the engine's opening is replaced where a GPU would be needed."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from tests.udf.ray.conftest import Run

ENGINES = """
import json, sys, time
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
            time.sleep(0.2)
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
    daft.set_execution_config(actor_udf_ready_timeout=given.pop("ready", 120))
    df = daft.from_pydict({"q": [f"Row {i}" for i in range(64)]}).into_partitions(8)
    out = df.with_column("a", prompt(col("q"), batch_size=4, **given)).to_pydict()
    print(json.dumps(sorted(set(out["a"]))))
"""


def test_each_engine_has_gpus_of_its_own(cluster: str, run: Run) -> None:
    """Four engines on two nodes have four pairs of node and mask; an engine of two GPUs has both of a node; two engines
    of half a GPU share one; and one engine of two that don't fit both answers all rows alone."""
    pair, single = {"resources": {"pair": 0.1}}, {"resources": {"single": 0.1}}
    asked = [
        {"gpus": 1, "max_concurrency": 4, "ray_options": pair},
        {"gpus": 2, "max_concurrency": "auto"},
        {"gpus": 0.5, "max_concurrency": 2, "ray_options": single},
    ]
    done = run(ENGINES, json.dumps(asked), address=cluster)
    assert done.returncode == 0, done.stderr[-3000:]
    whole, twice, shared = ([said.split() for said in json.loads(line)] for line in done.stdout.splitlines()[-3:])
    assert len({(node, mask) for node, mask, _ in whole}) == 4
    assert len({node for node, *_ in whole}) == 2
    assert {mask for _, mask, _ in whole} == {"0", "1"}
    assert sorted(mask for _, mask, _ in twice) == ["0,1", "0,1"]
    assert len({process for *_, process in shared}) == 2
    assert len({(node, mask) for node, mask, _ in shared}) == 1


def test_a_query_begins_with_the_engines_that_fit(
    cluster: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nodes may join, Daft waits as long as it is told to, and those that came answer all rows."""
    monkeypatch.setenv("DAFT_VLLM_RAY_GROWS", "1")
    asked: list[dict[str, Any]] = [
        {"gpus": 1, "max_concurrency": 3, "ray_options": {"resources": {"single": 0.1}}, "ready": 6}
    ]
    done = run(ENGINES, json.dumps(asked), address=cluster)
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(json.loads(done.stdout.splitlines()[-1])) == 1
    assert "3 engines of 1 GPU need 3 GPUs" not in done.stderr, "all GPUs count, of which the resource has one"
