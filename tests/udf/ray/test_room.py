"""Whether there is room for the engines: the arithmetic, on this machine and on nodes that are only described."""

from __future__ import annotations

import logging
import socket
import time
from typing import Any

import pytest
from daft import col

from daft_vllm import Provider, prompt
from daft_vllm.engine.setup.devices.room import check_room_here, engines_on
from daft_vllm.errors import DeviceError, OptionError
from daft_vllm.udf.options import PromptOptions
from daft_vllm.udf.planning import room
from daft_vllm.udf.preflight import cluster
from daft_vllm.udf.preflight.cluster import GROWS, check_room_in_cluster, need_of
from daft_vllm.udf.preflight.connection import check_reachable

Nodes = list[dict[str, float]]


def node(cpus: float, gpus: float = 0, **more: float) -> dict[str, float]:
    return {"CPU": cpus, **({"GPU": gpus} if gpus else {}), **more}


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    """The nodes of a cluster, for a test to fill."""
    found: Nodes = []
    monkeypatch.setattr(cluster, "nodes_of_cluster", lambda: found)
    monkeypatch.setattr(room, "nodes_of_cluster", lambda: found)
    monkeypatch.delenv(GROWS, raising=False)
    return found


@pytest.mark.parametrize(
    ("there", "gpus", "fit"),
    [(4, 1, 4), (3, 2, 1), (2, 0.5, 4), (1, 0.3, 3), (2, 0.4, 4), (1, 0.1, 10), (0, 1, 0), (0, 0.5, 0), (8, 8, 1)],
)
def test_how_many_engines_fit_on_a_machine(there: float, gpus: float, fit: int) -> None:
    """A share is of one GPU: with 0.4 two GPUs have four places, not five."""
    assert engines_on(there, gpus) == fit


@pytest.mark.parametrize(
    ("here", "engines", "need", "message"),
    [
        (
            [node(8, 2), node(8, 2)],
            6,
            need_of(1),
            '6 engines of 1 GPU need 6 GPUs; the cluster has 4 GPUs on 2 nodes: pass max_concurrency=4, or "auto".',
        ),
        (
            [node(0), node(2)],
            6,
            need_of(0),
            "6 engines of 1 CPU need 6 CPUs; the cluster has 2 CPUs on 1 node: pass max_concurrency=2.",
        ),
        (
            [node(8, 3), node(8, 3)],
            3,
            need_of(2),
            "3 engines of 2 GPUs and 1 CPU need 2 GPUs and 1 CPU of one node each; the cluster has 2 nodes with 3 GPUs "
            "and 8 CPUs, room for 2: pass max_concurrency=2",
        ),
        (
            [node(2, 8)],
            4,
            need_of(1),
            "4 engines of 1 CPU need 4 CPUs; the cluster has 2 CPUs on 1 node: pass max_concurrency=2",
        ),
        (
            [node(8, 2), node(8)],
            3,
            need_of(0.6),
            "the cluster has 1 node with 2 GPUs and 8 CPUs, 1 node with 0 GPUs and",
        ),
        ([node(8, 2)] * 4, 1, need_of(4), "an engine needs 4 GPUs and 1 CPU of one node, and the cluster has 4 nodes"),
        ([node(8)], 1, need_of(1), "has 1 node with 0 GPUs and 8 CPUs: lower gpus, or add a larger node."),
        ([node(0)], 1, need_of(0), "an engine needs 1 CPU of one node, and the cluster's nodes have none"),
        (
            [node(8, 2, a100=1), node(8, 2)],
            3,
            need_of(1, {"resources": {"a100": 0.5}, "num_cpus": 2}),
            "3 engines of 0.5 of 'a100' need 1.5 of 'a100'; the cluster has 1 of 'a100' on 2 nodes: pass",
        ),
    ],
)
def test_a_cluster_without_room(nodes: Nodes, here: Nodes, engines: int, need: dict[str, float], message: str) -> None:
    nodes.extend(here)
    with pytest.raises(DeviceError) as caught:
        check_room_in_cluster(engines, need)
    assert message in str(caught.value)
    assert (f"set {GROWS}=1" in str(caught.value)) == ("pass" in str(caught.value))


def test_a_cluster_with_room(nodes: Nodes) -> None:
    nodes.extend([node(0), node(2, 2), node(2, 2)])
    assert check_room_in_cluster(4, need_of(1)) == "4 of 4 GPUs, 4 of 4 CPUs"
    assert check_room_in_cluster(4, need_of(0.5)) == "2 of 4 GPUs, 4 of 4 CPUs"
    assert check_room_in_cluster(2, need_of(2)) == "4 of 4 GPUs, 2 of 4 CPUs"
    assert check_room_in_cluster(99, need_of(0, {"num_cpus": 0})) == ""


def test_auto_takes_what_fits_node_by_node(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "on_ray", lambda: True)
    nodes.extend([node(8, 3), node(8, 3), node(1, 8)])
    assert room.engines_of("auto", 2) == 3
    assert room.engines_of("auto", 1) == 7, "the last node has a CPU for one"
    assert room.engines_of("auto", 0) == 1
    assert room.engines_of("auto", 1, {"num_cpus": 4}) == 4
    with pytest.raises(OptionError, match="an engine needs 16 GPUs, and 14 are in the Ray cluster: lower gpus"):
        room.engines_of("auto", 16)


def test_a_cluster_that_grows_is_not_refused(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(GROWS, "1")
    nodes.append(node(2, 1))
    with caplog.at_level(logging.WARNING, "daft_vllm"):
        check_room_in_cluster(4, need_of(1))
    assert "4 engines of 1 GPU and 1 CPU need 4 GPUs and 4 CPUs; the cluster has 1 GPU and 2 CPUs on 1" in caplog.text
    assert "waits up to 120 s" in caplog.text
    with pytest.raises(DeviceError, match="Daft starts no engine before one fits: keep one such node running"):
        check_room_in_cluster(4, need_of(2))


def test_gpus_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an error of the call, before anything is loaded."""
    where = "daft_vllm.engine.setup.devices.room.visible_gpus"
    monkeypatch.setattr(where, lambda: ["0", "1", "2", "3"])
    began = time.monotonic()
    too_many = r'6 engines of 1 GPU need 6 GPUs, and 4 are visible here: pass max_concurrency=4, or "auto"\.'
    with pytest.raises(DeviceError, match=too_many):
        prompt(col("q"), gpus=1, max_concurrency=6)
    with pytest.raises(DeviceError, match=too_many):
        prompt(col("q"), gpus=1, max_concurrency=6, use_process=True)
    with pytest.raises(DeviceError, match=too_many):
        Provider(gpus=1, max_concurrency=6)
    with pytest.raises(
        DeviceError, match=r"9 engines of 0\.5 GPU need 4\.5 GPUs, and 4 are visible here: pass max_concurrency=8"
    ):
        prompt(col("q"), gpus=0.5, max_concurrency=9)
    with pytest.raises(DeviceError, match="an engine needs 8 GPUs, and 4 are visible here: lower gpus"):
        check_room_here(1, 8)
    prompt(col("q"), gpus=1, max_concurrency=4)
    monkeypatch.setattr(where, list)
    with pytest.raises(DeviceError, match="none is visible here"):
        prompt(col("q"), gpus=1)
    assert time.monotonic() - began < 10


def test_cores_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("daft_vllm.engine.setup.openmp._listed", lambda: [(0, 0, "0"), (0, 1, "1")])
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND", raising=False)
    for use_process in (False, True):
        with pytest.raises(DeviceError, match=r"6 engines need a CPU core each, .* use 2: pass max_concurrency=2\."):
            prompt(col("q"), gpus=0, max_concurrency=6, use_process=use_process)
    prompt(col("q"), gpus=0, max_concurrency=2)


@pytest.mark.parametrize("address", ["127.0.0.1", "http://127.0.0.1:8265", "ray://", "host:port", "a b", "::"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(OptionError, match="is no address of a Ray cluster: write auto, host:6379 or ray://host:10001"):
        check_reachable(address)


def test_where_nobody_answers() -> None:
    with socket.socket() as unused:  # bound, but it doesn't listen
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
            with pytest.raises(DeviceError, match=rf"no Ray cluster answers at '{address}' \(Connection refused\)"):
                check_reachable(address)
        with pytest.raises(DeviceError, match=r"no Ray cluster answers at 'no-such-host\.invalid:6379'"):
            check_reachable("no-such-host.invalid:6379")
    for word in ("", "auto", "local"):
        check_reachable(word)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"runtime_env": {"env_vars": {"TOKEN": "s3cret"}}}, "Daft 0.7 takes nothing but conda in a runtime_env"),
        ({"runtime_env": "s3cret"}, "Ray takes no str like this one for 'runtime_env'"),
        ({"label_selector": {"s3cret!!": "in("}}, "Ray takes no dict like this one for 'label_selector'"),
        ("s3cret", "ray_options is a dict by Ray's names, got str."),
    ],
)
def test_ray_options_are_checked_and_not_shown(given: Any, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        prompt(col("q"), gpus=0, ray_options=given)
    assert message in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_ray_options_are_for_ray() -> None:
    given = {"runtime_env": {"conda": "s3cret"}, "num_cpus": 2}
    assert "s3cret" not in repr(PromptOptions(ray_options=given))
    with pytest.raises(
        OptionError, match=r"ray_options are for Ray, .*: call daft.set_runner_ray\(\) before"
    ) as caught:
        prompt(col("q"), gpus=0, ray_options=given)
    assert "s3cret" not in str(caught.value)
