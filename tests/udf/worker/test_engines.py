"""Which GPUs a shared engine takes and gives back. The engine is a stand-in: what is tested is what surrounds it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from daft_vllm import EngineConfig, EngineStats
from daft_vllm.engine.process.core import GRACE_SECONDS
from daft_vllm.engine.setup.devices.claims import GpuClaim
from daft_vllm.errors import DeviceError, EngineStartError
from daft_vllm.udf.worker import engines


class Stub:
    """Notes the GPUs that vLLM's processes would see; does not start for the model "broken"."""

    seen: ClassVar[list[str | None]] = []
    graces: ClassVar[list[float]] = []

    def __init__(
        self, config: EngineConfig, *, variables: Sequence[Mapping[str, str]], check_chat_template: bool
    ) -> None:
        Stub.seen.append(os.environ.get("CUDA_VISIBLE_DEVICES"))
        self.variables = variables
        if config.model == "broken":
            raise EngineStartError("out of memory")
        self.is_over = False
        self.counters = EngineStats()

    def stats(self) -> EngineStats:
        return self.counters

    def set_limits(self, stall_timeout: float, max_restarts: int) -> None:
        self.limits = stall_timeout, max_restarts

    def close(self, grace: float) -> None:
        Stub.graces.append(grace)
        self.is_over = True


@pytest.fixture(autouse=True)
def two_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(engines, "OfflineEngine", Stub)
    monkeypatch.setattr(engines, "check_fits", lambda config, engines: None)  # it would ask the hub for these models
    monkeypatch.setattr(engines, "_open", {})
    monkeypatch.setattr(Stub, "seen", [])
    monkeypatch.setattr(Stub, "graces", [])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7")
    yield
    engines.close_engines()


def opened(model: str, gpus: float = 1) -> Stub:
    engine = engines.shared_engine(EngineConfig(model, gpus=gpus), check_chat_template=False, claim_gpus=True)
    assert isinstance(engine, Stub)
    return engine


def free_gpus() -> list[str]:
    """The GPUs that another process could claim."""
    ids = []
    for gpu in ("6", "7"):
        try:
            claim = GpuClaim(1, [gpu])
        except DeviceError:
            continue
        ids += claim.ids
        claim.release()
    return ids


def test_busy_engines_have_gpus_of_their_own() -> None:
    opened("one").counters.pending = 1
    opened("two")
    assert Stub.seen == ["6", "7"]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "6,7"
    assert free_gpus() == []


def test_each_of_several_engines_behind_one_queue_has_its_own() -> None:
    config = EngineConfig("one", gpus=1)
    engine: Any = engines.shared_engine(config, check_chat_template=False, claim_gpus=True, engines=2)
    assert Stub.seen == ["6"], "the first one starts with its own mask"
    assert [one["CUDA_VISIBLE_DEVICES"] for one in engine.variables] == ["6", "7"]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "6,7"
    assert engines.shared_engine(config, check_chat_template=False, engines=2) is engine
    assert free_gpus() == []
    engines.close_engines()
    with pytest.raises(DeviceError, match="3 engines of 1 GPU need 3 GPUs, and 2 are visible here: pass max_concurr"):
        engines.shared_engine(config, check_chat_template=False, claim_gpus=True, engines=3)
    other = GpuClaim(1, ["7"])  # as of another process
    with pytest.raises(DeviceError, match="0 of the 2 visible here are free"):
        engines.shared_engine(config, check_chat_template=False, claim_gpus=True, engines=2)
    other.release()
    assert free_gpus() == ["6", "7"], "those that were claimed before are free again"


def test_an_idle_engine_makes_room_for_one_that_wants_both() -> None:
    first = opened("one")
    opened("two", gpus=2)
    assert first.is_over
    assert Stub.seen == ["6", "6,7"]


def test_the_same_engine_is_opened_once_and_again_when_it_died() -> None:
    first = opened("one")
    assert opened("one") is first
    first.is_over = True
    assert opened("one") is not first
    assert Stub.seen == ["6", "6"]


def test_settings_that_need_no_load_do_not_open_another_engine() -> None:
    """Two queries that differ in these alone would hold the model twice."""
    engine = opened("one")
    engine.counters.in_flight = 1
    changes: list[dict[str, Any]] = [{"truncate_prompt_tokens": -1}, {"truncation_side": "left"}]
    for changed in (*changes, {"stall_timeout": 9.0, "max_restarts": 1}):
        again = engines.shared_engine(EngineConfig("one", gpus=1, **changed), check_chat_template=False)
        assert again is engine
    assert engine.limits == (9.0, 1)
    assert len(Stub.seen) == 1


def test_an_engine_of_another_model_is_closed_when_it_is_idle() -> None:
    """A busy one stays beside the new one, until a further engine is opened."""
    first = opened("one", gpus=0)
    first.counters.in_flight = 1
    second = opened("two", gpus=0)
    assert (first.is_over, second.is_over) == (False, False)
    first.counters.in_flight = 0
    opened("three", gpus=0)
    assert (first.is_over, second.is_over) == (True, True)


def test_an_engine_that_does_not_start_holds_no_gpu() -> None:
    with pytest.raises(EngineStartError):
        opened("broken", gpus=2)
    assert free_gpus() == ["6", "7"]


def test_closed_engines_hold_no_gpu() -> None:
    opened("one").counters.in_flight = 1
    opened("two")
    engines.close_engines()
    assert free_gpus() == ["6", "7"]
    with pytest.raises(DeviceError, match="an engine needs 3 GPUs, and 2 are visible here: lower gpus"):
        opened("three", gpus=3)


def test_a_process_that_leaves_kills_its_engines() -> None:
    opened("a")
    engines.kill_engines()
    opened("b")
    engines.close_engines()
    assert Stub.graces == [0, GRACE_SECONDS]
