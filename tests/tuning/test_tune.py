"""Tuning: faults are injected into trials; the real thing runs once, briefly."""

from __future__ import annotations

import json
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from daft_vllm.errors import EngineError, OptionError
from daft_vllm.tuning.tune import Trial, Tuner, TuningResult, error_in, tuned_args, write_overlay
from tests.conftest import TINY_ARGS
from tests.helpers import vllm_processes


class FakeTuner(Tuner):
    """Rates from a table in place of trials."""

    def __init__(self, rates: dict[str, Any], log: Path, **options: Any) -> None:
        self.rates = rates
        self.runs: list[dict[str, Any]] = []
        shared_first = options.pop("shared_first_texts", None)
        super().__init__("m", ["a"], shared_first=shared_first, max_tokens=1, engine_args=options, gpus=0, log=log)

    def _run_one(self, settings: dict[str, Any]) -> Trial:
        self.runs.append(settings)
        rate = 1.0
        for name, value in settings.items():
            found = self.rates.get(f"{name}={value}", 1.0)
            if isinstance(found, str):
                return Trial(settings, error=found)
            rate *= found
        return Trial(settings, 10 * rate)


def test_the_faster_settings_are_found_and_proved(tmp_path: Path) -> None:
    rates = {
        "max_num_batched_tokens=1024": 1.5,
        "max_num_batched_tokens=2048": "failed: out of memory",
        "block_size=64": 1.2,
    }
    tuned = FakeTuner(rates, tmp_path / "log").run(minutes=1)
    assert tuned.settings == {"max_num_batched_tokens": 1024, "block_size": 64}
    assert (tuned.default, tuned.best) == (10.0, pytest.approx(18.0))
    assert "1.80 times the default's 10.00" in str(tuned)


def test_a_log_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "log").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic link"):
        FakeTuner({}, tmp_path / "log").run(minutes=1)
    assert (tmp_path / "precious").read_text() == "precious"


def test_nothing_faster_is_said(tmp_path: Path) -> None:
    tuned = FakeTuner({"max_num_seqs=64": 1.02, "block_size=64": 0.5}, tmp_path / "log").run(minutes=1)
    assert tuned.settings == {}
    assert "nothing was faster than the default, 10.00 rows/s" in str(tuned)


def test_what_there_was_no_time_for_is_said(tmp_path: Path) -> None:
    class Slow(FakeTuner):
        def _run_one(self, settings: dict[str, Any]) -> Trial:
            time.sleep(0.05)
            return super()._run_one(settings)

    tuned = Slow({}, tmp_path / "log").run(minutes=0.4 / 60)
    assert len(tuned.trials) + len(tuned.untried) == 1 + 7
    assert tuned.untried[-1] == "block_size=128"
    assert str(tuned).endswith(f"Not tried, for lack of time: {', '.join(tuned.untried)}.")


def test_shared_fields_first_is_a_setting_too(tmp_path: Path) -> None:
    tuner = FakeTuner({"shared_first=True": 2.0, "block_size=64": 1.5}, tmp_path / "log", shared_first_texts=["b"])
    tuned = tuner.run(minutes=1)
    assert tuned.settings == {"shared_first": True, "block_size": 64}
    assert tuned.engine_args == {"block_size": 64}
    path = tmp_path / "tuned.toml"
    write_overlay(tuned, path, "m")
    assert tuned_args(path) == {"block_size": 64}
    assert tomllib.loads(path.read_text())["prompt"] == {"shared_first": True}


def test_a_lucky_run_does_not_count(tmp_path: Path) -> None:
    class Lucky(FakeTuner):
        def _run_one(self, settings: dict[str, Any]) -> Trial:
            super()._run_one(settings)
            return Trial(settings, 20.0 if settings and self.runs.count(settings) == 1 else 10.0)

    assert Lucky({}, tmp_path / "log").run(minutes=1).settings == {}


def test_it_goes_on_where_it_was(tmp_path: Path) -> None:
    rates = {"block_size=64": 1.3}
    first = FakeTuner(rates, tmp_path / "log")
    found = first.run(minutes=1)
    again = FakeTuner(rates, tmp_path / "log")
    assert again.run(minutes=1).settings == found.settings == {"block_size": 64}
    assert again.runs == []
    with (tmp_path / "log").open("a") as file:
        file.write('{"job": "cut o')
    assert len(FakeTuner(rates, tmp_path / "log").trials) == len(first.runs)
    other = FakeTuner(rates, tmp_path / "log", max_model_len=512)  # another job
    other.run(minutes=1)
    assert len(other.runs) == len(first.runs)


def test_what_is_given_stays(tmp_path: Path) -> None:
    tuner = FakeTuner({"block_size=64": 2.0}, tmp_path / "log", block_size=32)
    assert tuner.run(minutes=1).settings == {}
    assert all("block_size" not in settings for settings in tuner.runs)


def test_a_default_that_does_not_run(tmp_path: Path) -> None:
    class Broken(FakeTuner):
        def _run_one(self, settings: dict[str, Any]) -> Trial:
            return Trial(settings, error="failed: no memory")

    with pytest.raises(EngineError, match="does not run with its default settings: failed: no memory"):
        Broken({}, tmp_path / "log").run(minutes=1)


def test_overlays(tmp_path: Path) -> None:
    path = tmp_path / "tuned.toml"
    write_overlay(TuningResult({"max_num_seqs": 64, "gpu_memory_utilization": 0.95}, 10.0, 12.0), path, "m")
    assert tuned_args(path) == {"max_num_seqs": 64, "gpu_memory_utilization": 0.95}
    write_overlay(TuningResult({}, 10.0, 10.0), path, "m")
    assert tuned_args(path) == {}
    with pytest.raises(OptionError, match="can't be read"):
        tuned_args(tmp_path / "missing.toml")
    path.write_text("a = 1\n")
    with pytest.raises(OptionError, match="no overlay"):
        tuned_args(path)
    with pytest.raises(OptionError, match="at least one prompt"):
        Tuner("m", [], max_tokens=1, engine_args={}, gpus=0, log=path)


@pytest.mark.slow
def test_real_trials_leave_nothing_behind(tiny: str, tmp_path: Path) -> None:
    """One that runs, one that vLLM refuses, one that takes too long."""
    before = vllm_processes()
    log = tmp_path / "log"
    tuner = Tuner(tiny, ["a", "b"], max_tokens=4, engine_args=TINY_ARGS, gpus=0, log=log)
    good = tuner._try({"max_num_seqs": 8})
    assert good.error is None
    assert good.rows_per_second > 0
    assert tuner._try({"max_num_seqs": -1}).error
    hasty = Tuner(tiny, ["a"], max_tokens=4, engine_args=TINY_ARGS, gpus=0, log=log, trial_seconds=4.0)
    assert hasty._try({}).error == "took more than 4 seconds"
    assert vllm_processes() == before
    assert [json.loads(line)["error"] is None for line in log.read_text().splitlines()] == [True, False, False]


def test_why_a_trial_failed() -> None:
    stderr = (
        "KeyError: 'x'\n\nTraceback:\n  File\ndaft_vllm.errors.EngineStartError: no memory\nLower it.\nThe log is x.\n"
    )
    assert error_in(stderr) == "daft_vllm.errors.EngineStartError: no memory Lower it. The log is x."
    assert error_in("Killed\n") == "Killed"
    assert error_in("") == "it ended without an error message"
