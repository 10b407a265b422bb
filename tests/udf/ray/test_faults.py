"""What a job on several nodes survives: actors and cores that are killed, and nodes that go. With real engines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import daft
import psutil
import pytest

from benchmarks.chaos.processes import name_of
from daft_vllm.engine.store.removal import count_answers
from daft_vllm.udf.worker.progress import read_progress

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

SCRIPT = """
import json, sys
import daft
from daft import col
from daft_vllm import prompt

given = json.loads(sys.argv[1])
rows = given["rows"]
table = {"id": list(range(rows)), "q": [f"Write about {i}." for i in range(rows)]}
if given["wide"]:
    table["x"] = [str(i) * 5000 for i in range(rows)]
df = daft.from_pydict(table).into_partitions(given["partitions"])
answer = prompt(
    col("q"), model=given["model"], gpus=0, max_concurrency=2, max_tokens=8, ignore_eos=True, details=True,
    batch_size=25, store=given["store"], progress_folder=given["progress"],
    engine_args={"max_model_len": 256, "kv_cache_memory_bytes": 128 << 20, "dtype": "float32", "max_num_seqs": 16},
)
df = df.with_column("a", answer)
if given["wide"]:
    df = df.collect()
df.select("id", "a").write_parquet(given["output"], write_mode="overwrite")
"""


class Nodes:
    """A cluster of a head that runs nothing and two nodes for an engine or two each."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        self._nodes = [self.cluster.add_node(num_cpus=2) for _ in range(2)]

    def processes(self, begins: str) -> list[psutil.Process]:
        """Return the cluster's processes whose names begin so."""
        return [one for one in psutil.Process().children(recursive=True) if name_of(one).startswith(begins)]

    def kill(self, begins: str) -> int:
        """Kill one of these processes, and return its id."""
        deadline = time.monotonic() + 120
        while not (found := self.processes(begins)):
            assert time.monotonic() < deadline, f"no {begins} runs"
            time.sleep(0.2)
        found[0].kill()
        return found[0].pid

    def remove_node(self) -> None:
        """Remove a node with all of its processes, as a machine that is turned off."""
        self.cluster.remove_node(self._nodes.pop(), allow_graceful=False)


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    started = Nodes()
    yield started
    started.cluster.shutdown()


class Job:
    """A job of one query."""

    def __init__(self, nodes: Nodes, folder: Path, **given: Any) -> None:
        (folder / "script.py").write_text(SCRIPT, encoding="utf-8")
        self.output, self._progress, self._log = folder / "out", folder / "progress", folder / "log"
        self._progress.mkdir(exist_ok=True)
        given = {"store": None, "wide": False, **given}
        given |= {"output": str(self.output), "progress": str(self._progress)}
        self._done_before = self.done()
        env = {**os.environ, "DAFT_RUNNER": "ray", "RAY_ADDRESS": nodes.cluster.address}
        self._file: IO[bytes] = self._log.open("ab")
        self.process = subprocess.Popen(
            [sys.executable, str(folder / "script.py"), json.dumps(given)],
            env=env,
            stdout=self._file,
            stderr=subprocess.STDOUT,
        )

    def done(self) -> int:
        return int(read_progress(str(self._progress))["done"])

    def wait_for(self, rows: int) -> bool:
        """Wait until so many rows are answered, and return whether the job still runs."""
        deadline = time.monotonic() + 600
        while self.process.poll() is None and self.done() - self._done_before < rows:
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.1)
        return self.process.poll() is None

    def end(self) -> int:
        code = self.process.wait(timeout=900)
        self._file.close()
        return code

    def said(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def check(self, rows: int) -> None:
        """Every id is there once, with an answer."""
        found = daft.read_parquet(str(self.output)).to_pydict()
        assert Counter(found["id"]) == Counter(range(rows))
        assert all(row["error"] is None and row["value"] for row in found["a"])


ACTOR, CORE = "ray::UDFActor", "VLLM::Engine"
Fault = Callable[[Nodes], object]
FAULTS: dict[str, Fault] = {
    "actor": lambda nodes: nodes.kill(ACTOR),
    "core": lambda nodes: nodes.kill(CORE),
    "node": Nodes.remove_node,
}

SAID = {
    "actor": "Task UDFActor.eval_input failed",
    "core": "vLLM is running again.",
    "node": "has been marked dead",
}
"""What the job's log says of each fault."""


@pytest.mark.parametrize("fault", FAULTS)
def test_four_hundred_rows(smollm2: str, nodes: Nodes, tmp_path: Path, fault: str) -> None:
    """Nothing but Ray and Daft is needed for that: they send the batches again."""
    job = Job(nodes, tmp_path, rows=400, partitions=4, model=smollm2)
    assert job.wait_for(60), job.said()
    FAULTS[fault](nodes)
    code = job.end()
    assert code == 0, job.said()[-4000:]
    job.check(400)
    assert SAID[fault] in job.said()


def test_a_thousand_rows(smollm2: str, nodes: Nodes, tmp_path: Path) -> None:
    """An actor, a core and a node are lost, one after the other. What the query doesn't survive, the store does."""
    given = {"rows": 1000, "partitions": 8, "model": smollm2, "store": str(tmp_path / "store")}
    job = Job(nodes, tmp_path, **given)
    for number, fault in enumerate(FAULTS):
        assert job.wait_for(100 + 200 * number), job.said()[-4000:]
        FAULTS[fault](nodes)
    if job.end():
        assert Job(nodes, tmp_path, **given).end() == 0, job.said()[-4000:]
    job.check(1000)
    assert all(text in job.said() for text in SAID.values()), job.said()[-4000:]


def test_a_node_takes_finished_partitions_with_it(smollm2: str, nodes: Nodes, tmp_path: Path) -> None:
    """Daft holds them where they were made. If they are too large for Ray's messages, the query fails when they are
    asked for: then the store has the answers, and the same query computes only the others."""
    given = {"rows": 400, "partitions": 16, "model": smollm2, "store": str(tmp_path / "store"), "wide": True}
    job = Job(nodes, tmp_path, **given)
    assert job.wait_for(220), job.said()[-4000:]
    nodes.remove_node()
    assert job.end() != 0
    assert "ObjectReconstructionFailedError" in job.said()
    assert count_answers(tmp_path / "store") >= 220
    again = Job(nodes, tmp_path, **given)
    assert again.end() == 0, again.said()[-4000:]
    again.check(400)
