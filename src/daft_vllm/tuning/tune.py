"""``daft-vllm tune``: short trials of vLLM's settings on rows of the job, and an overlay with those that are faster.

Every trial runs an engine in its own process. A process that hangs is killed, so none is left behind. The results are
logged beside the overlay, and the next run does not repeat these trials.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from daft_vllm.errors import EngineError, OptionError
from daft_vllm.folders import open_unlinked

NOISE = 0.03
"""A setting counts as faster if its rate is higher by more than this share. Two runs of one job differ by less."""
CONFIRMATIONS = 3
"""How often the default and the best settings each run, in turns, to decide between them at the end."""
SHARED_FIRST = "shared_first"
"""The setting that is no argument of vLLM: it puts the prompt's lines into the order of ``daft_vllm.shared_first``."""
_CPU_AXES: Mapping[str, Sequence[Any]] = {
    "max_num_batched_tokens": (1024, 256, 2048),
    "max_num_seqs": (64, 128),
    "block_size": (64, 128),
}
_GPU_AXES: Mapping[str, Sequence[Any]] = {
    "max_num_batched_tokens": (16384, 4096, 2048),
    "max_num_seqs": (512, 128, 1024),
    "gpu_memory_utilization": (0.95,),
    "block_size": (32,),
}


@dataclass(frozen=True)
class Trial:
    """One run.

    Args:
        settings: the settings that were tried, in addition to the given ones.
        rows_per_second: rows a second, loading excluded. 0: it failed.
        error: why it failed.
    """

    settings: dict[str, Any]
    rows_per_second: float = 0.0
    error: str | None = None


@dataclass
class TuningResult:
    """What tuning found.

    Args:
        settings: the settings that are faster than the default. Empty: none is.
        default: rows a second of the default, median of its runs.
        best: rows a second of ``settings``, median of their runs.
        trials: all runs.
        untried: settings that there was no time for.
    """

    settings: dict[str, Any]
    default: float
    best: float
    trials: list[Trial] = field(default_factory=list)
    untried: list[str] = field(default_factory=list)

    @property
    def engine_args(self) -> dict[str, Any]:
        """The ``settings`` that are arguments of vLLM's engine."""
        return {name: value for name, value in self.settings.items() if name != SHARED_FIRST}

    def __str__(self) -> str:
        untried = f" Not tried, for lack of time: {', '.join(self.untried)}." if self.untried else ""
        if not self.settings:
            return (
                f"nothing was faster than the default, {self.default:.2f} rows/s, in {len(self.trials)} runs.{untried}"
            )
        listed = ", ".join(f"{name}={value}" for name, value in self.settings.items())
        faster = f"{self.best / self.default:.2f} times the default's {self.default:.2f}"
        return f"{listed}: {self.best:.2f} rows/s, {faster}.{untried}"


class Tuner:
    """Tries settings for one job.

    Args:
        model: a folder or a name on the hub, as vLLM takes it.
        texts: prompts like the job's, enough for some seconds.
        shared_first: the same prompts with shared fields first. None: this setting isn't tried.
        max_tokens: the longest answer.
        engine_args: settings that stay as they are.
        gpus: GPUs of the engine.
        log: a file of JSON lines, one for each run. Runs that are in it are not repeated.
        say: called with a line of text after every run.
        trial_seconds: limit of a run, loading included. A run that takes longer is killed.
    """

    def __init__(
        self,
        model: str,
        texts: Sequence[str],
        *,
        shared_first: Sequence[str] | None = None,
        max_tokens: int,
        engine_args: Mapping[str, Any],
        gpus: float,
        log: Path,
        say: Callable[[str], None] = lambda line: None,
        trial_seconds: float = 600.0,
    ) -> None:
        if not texts:
            raise OptionError("tuning needs at least one prompt.")
        self._job: dict[str, Any] = {"model": model, "texts": list(texts), "max_tokens": max_tokens, "gpus": gpus}
        self._shared_first = list(shared_first) if shared_first is not None else None
        self._given = dict(engine_args)
        self._log = log
        self._say = say
        self._trial_seconds = trial_seconds
        self._gpus = gpus
        self.trials: list[Trial] = []
        self._known: dict[str, list[Trial]] = {}
        self._key = json.dumps([self._job, self._given], sort_keys=True)
        self._read_log()

    def run(self, minutes: float) -> TuningResult:
        """Try settings one after the other until the time is up, then decide between the best and the default.

        Raises:
            EngineError: the default settings do not run.
        """
        deadline = time.monotonic() + 60 * minutes
        default = self._try({})
        if default.error is not None:
            raise EngineError(f"the engine does not run with its default settings: {default.error}")
        best = default
        spent: list[float] = []
        untried: list[str] = []
        for name, values in self._axes().items():
            start = best
            for value in values:
                # Leave time for the runs that decide at the end: this trial may be the best, and then it runs again.
                left = deadline - time.monotonic()
                if untried or (spent and left < max(spent) * (1 + 2 * (CONFIRMATIONS - 1))):
                    untried.append(f"{name}={value}")
                    continue
                began = time.monotonic()
                trial = self._try({**start.settings, name: value})
                spent.append(time.monotonic() - began)
                if trial.rows_per_second > best.rows_per_second * (1 + NOISE):
                    best = trial
        return self._decided(best, untried)

    def _axes(self) -> dict[str, Sequence[Any]]:
        """Return the values to try in place of the default, for each setting that the user did not give."""
        axes = {n: values for n, values in (_GPU_AXES if self._gpus else _CPU_AXES).items() if n not in self._given}
        return axes if self._shared_first is None else {SHARED_FIRST: (True,), **axes}

    def _decided(self, best: Trial, untried: list[str]) -> TuningResult:
        rates: dict[str, list[float]] = {"default": [], "best": []}
        if best.settings:
            for number in range(CONFIRMATIONS):
                rates["default"].append(self._try({}, number).rows_per_second)
                rates["best"].append(self._try(best.settings, number).rows_per_second)
        else:
            rates["default"] = [self._try({}).rows_per_second]
        default = median(rates["default"])
        found = median(rates["best"]) if rates["best"] else default
        faster = found > default * (1 + NOISE)
        settings = dict(best.settings) if faster else {}
        return TuningResult(settings, default, found if faster else default, self.trials, untried)

    def _try(self, settings: dict[str, Any], repeat: int = 0) -> Trial:
        """Return run number ``repeat``, from 0, with these settings. Runs that were done before are not repeated."""
        key = json.dumps(settings, sort_keys=True)
        known = self._known.setdefault(key, [])
        while len(known) <= repeat:
            trial = self._run_one(settings)
            known.append(trial)
            self.trials.append(trial)
            with open(self._log, "a", encoding="utf-8", opener=open_unlinked) as file:
                file.write(json.dumps({"job": _digest(self._key), **asdict(trial)}) + "\n")
            result = trial.error or f"{trial.rows_per_second:.2f} rows/s"
            self._say(f"{', '.join(f'{n}={v}' for n, v in settings.items()) or 'default'}: {result}")
        return known[repeat]

    def _run_one(self, settings: dict[str, Any]) -> Trial:
        args = {**self._given, **settings}
        texts = self._shared_first if args.pop(SHARED_FIRST, False) else self._job["texts"]
        job = json.dumps({**self._job, "texts": texts, "engine_args": args})
        process = subprocess.Popen(
            [sys.executable, "-m", "daft_vllm.tuning.trial"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(job, timeout=self._trial_seconds)
        except subprocess.TimeoutExpired:
            return Trial(settings, error=f"took more than {self._trial_seconds:g} seconds")
        finally:
            _kill_session(process)
        lines = out.strip().splitlines()
        if process.returncode or not lines:
            return Trial(settings, error=f"failed: {error_in(err)[:300]}")
        result = json.loads(lines[-1])
        if result["failed"] == len(self._job["texts"]):
            return Trial(settings, error="every row failed")
        return Trial(settings, result["rows_per_second"])

    def _read_log(self) -> None:
        if not self._log.is_file():
            return
        text = self._log.read_text(encoding="utf-8")
        if text and not text.endswith("\n"):  # the previous run was killed while it wrote a line
            with open(self._log, "a", encoding="utf-8", opener=open_unlinked) as file:
                file.write("\n")
        for line in text.splitlines():
            try:
                entry = json.loads(line)
            except ValueError:  # an incomplete line: the run that wrote it was killed
                continue
            if entry.pop("job") == _digest(self._key):
                trial = Trial(**entry)
                self._known.setdefault(json.dumps(trial.settings, sort_keys=True), []).append(trial)
                self.trials.append(trial)


def error_in(stderr: str) -> str:
    """Return the message of the exception that ended a process, in one line."""
    lines = stderr.strip().splitlines()
    first = next((i for i, line in reversed([*enumerate(lines)]) if re.match(r"[\w.]+(Error|Exception): ", line)), -1)
    return " ".join(lines[first:]) or "it ended without an error message"


def write_overlay(tuned: TuningResult, path: Path, model: str) -> None:
    """Write the settings found, and the evidence for them, as TOML that ``tuned_args`` reads."""
    values = [f"{name} = {json.dumps(value)}" for name, value in tuned.engine_args.items()]
    lines = [
        f"# {model} on {platform.processor() or platform.machine()}, {os.cpu_count()} cores, {datetime.date.today()}",
        f"# {tuned}",
        "",
        "[engine_args]",
        *values,
        *(["", "[prompt]", "shared_first = true"] if SHARED_FIRST in tuned.settings else []),
        "",
        "[evidence]",
        f"default_rows_per_second = {tuned.default:.4f}",
        f"tuned_rows_per_second = {tuned.best:.4f}",
        f"runs = {len(tuned.trials)}",
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def tuned_args(path: str | Path) -> dict[str, Any]:
    """Return the ``engine_args`` of an overlay that ``daft-vllm tune`` wrote.

    Raises:
        OptionError: there is no such file, or it is not an overlay.
    """
    try:
        data = tomllib.loads(Path(path).expanduser().read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as e:
        raise OptionError(f"the overlay {str(path)!r} can't be read: {e}") from e
    if not isinstance(data.get("engine_args"), dict):
        raise OptionError(f"{str(path)!r} is no overlay: it has no table engine_args.")
    return dict(data["engine_args"])


def _digest(text: str) -> str:
    import hashlib

    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _kill_session(process: subprocess.Popen[str]) -> None:
    """Kill all processes that the trial started and that still run."""
    for other in psutil.process_iter():
        try:
            if os.getsid(other.pid) == process.pid:
                other.send_signal(signal.SIGKILL)
        except (psutil.Error, OSError):
            continue
    process.wait()
