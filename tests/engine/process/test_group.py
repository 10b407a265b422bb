"""Several vLLMs behind one queue, each with cores of its own."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import daft
import psutil
import pytest
from daft import col

from daft_vllm import EngineConfig, OfflineEngine, Request, SamplingOptions, prompt
from daft_vllm.engine.process import early_core
from daft_vllm.engine.setup.environment import START_LOCK
from daft_vllm.engine.setup.openmp import divided_cores
from daft_vllm.errors import DeviceError
from daft_vllm.udf.worker import engines
from daft_vllm.udf.worker.engines import close_engines
from tests.conftest import TINY_ARGS

pytestmark = pytest.mark.other_engine
SAMPLING = SamplingOptions(max_tokens=4, ignore_eos=True)


@pytest.fixture(scope="module")
def two(tiny: str) -> Iterator[OfflineEngine]:
    args = {**TINY_ARGS, "max_num_seqs": 16}
    answer = prompt(col("q"), model=tiny, gpus=0, max_concurrency=2, max_tokens=2, max_restarts=1, engine_args=args)
    rows = daft.from_pydict({"id": list(range(300)), "q": [f"Row {i}" for i in range(300)]})
    found = rows.select("id", answer.alias("a")).sort("id").to_pydict()
    assert found["id"] == list(range(300))
    assert None not in found["a"]
    (opened,) = engines._open.values()
    engine = opened.engine
    deadline = time.monotonic() + 120
    while len(engine.process_ids) < 2 or not all(thread.lane.is_open for thread in engine._state._threads):
        assert time.monotonic() < deadline, "the second engine doesn't start"
        time.sleep(0.1)
    yield engine
    close_engines()


def steps(engine: OfflineEngine) -> list[int]:
    return [thread._watch.steps for thread in engine._state._threads]


def requests(rows: int, groups: int = 16) -> list[Request]:
    prefixes = [f"Group {g} of the rows that begin alike, all of them. " * 6 for g in range(groups)]
    return [Request(f"{prefixes[i % groups]}Row {i}.", sampling=SAMPLING) for i in range(rows)]


def test_both_answer_from_the_first_row_on(two: OfflineEngine) -> None:
    before, stats, figures = steps(two), two.stats(), two.figures()
    outcomes = two.run(requests(800))
    assert all(outcome.text for outcome in outcomes)
    worked = [after - first for first, after in zip(before, steps(two), strict=True)]
    assert min(worked) > 0.2 * max(worked), worked
    added = two.stats().since(stats)
    added.check()
    assert added.computed_tokens < 1.15 * added.optimal_tokens
    each = [after.since(first) for after, first in zip(two.figures(), figures, strict=True)]
    assert all(one.state == "ready" and one.done > 80 and one.busy_seconds > 0 for one in each), each
    for name in ("prompt_tokens", "cached_tokens", "completion_tokens", "steps"):
        assert sum(getattr(one, name) for one in each) == getattr(added, name)
    assert sum(one.done for one in each) == 800


def test_each_has_cores_of_its_own(two: OfflineEngine) -> None:
    bound = []
    for pid in two.process_ids:
        masks = [os.sched_getaffinity(thread.id) for thread in psutil.Process(pid).threads()]
        bound.append({cpu for mask in masks if len(mask) == 1 for cpu in mask})
    assert all(bound)
    assert not bound[0] & bound[1]


def test_cores_are_divided_by_memory_node(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = [(cpu % 8 // 4, cpu, f"core{cpu % 8}") for cpu in range(16)]  # two nodes, eight cores of two threads
    monkeypatch.setattr("daft_vllm.engine.setup.openmp._listed", lambda: sorted(listed))
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND", raising=False)
    parts = [list(map(int, one["VLLM_CPU_OMP_THREADS_BIND"].split(","))) for one in divided_cores(4)]
    assert [len(part) for part in parts] == [2] * 4
    assert len({cpu % 8 for part in parts for cpu in part}) == 8
    assert all(len({cpu % 8 // 4 for cpu in part}) == 1 for part in parts), "an engine has cores of one node"
    assert divided_cores(1) == [{}]
    with pytest.raises(DeviceError, match=r"9 engines need a CPU core each, and this process may use 8"):
        divided_cores(9)
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0-3|4-7")
    assert divided_cores(2) == [{}, {}], "the user's own setting stays"


def test_a_dead_core_loses_nothing_and_the_other_goes_on(two: OfflineEngine) -> None:
    before = two.stats()
    future = two.submit(requests(3000))
    while two.stats().since(before).done < 200:
        time.sleep(0.01)
    os.kill(two.process_ids[1], signal.SIGKILL)
    outcomes = future.result(timeout=120)
    assert Counter(outcome.error and outcome.error.code for outcome in outcomes) == {None: 3000}
    assert two.stats().since(before).restarts <= 1
    assert [one.deaths for one in two.figures()] == [0, 1]
    two.stats().check()
    assert not two.is_over


def test_later_engines_load_side_by_side_with_variables_of_their_own(
    tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If one of them dies meanwhile, the other one's core stays."""
    close_engines()
    seen = []

    class Noted(early_core.EarlyProcess):
        def __init__(self, *args: Any) -> None:
            seen.append(os.environ.get("DAFT_VLLM_MARK"))
            super().__init__(*args)

    monkeypatch.setattr(early_core, "EarlyProcess", Noted)
    config = EngineConfig(tiny, {**TINY_ARGS, "max_num_seqs": 16}, gpus=0, max_restarts=0)
    with OfflineEngine(config, variables=[{}, *({"DAFT_VLLM_MARK": mark} for mark in ("dies", "lives"))]) as engine:
        first, second, third = engine._state._threads
        both = False
        deadline = time.monotonic() + 180
        while not (second.is_over and third.lane.is_open):
            assert time.monotonic() < deadline, "an engine doesn't start, or doesn't end"
            starting = [one._starting for one in (second, third)]
            if not both and all(one is not None and one.own for one in starting):
                both = True
                starting[0].own[0].kill()
            time.sleep(0.02)
        assert both
        assert seen == [None, "dies", "lives"]
        assert "DAFT_VLLM_MARK" not in os.environ
        assert START_LOCK.acquire(timeout=0)
        START_LOCK.release()
        assert [one.is_over for one in (first, second, third)] == [False, True, False]
        assert all(outcome.text for outcome in engine.run(requests(300)))
