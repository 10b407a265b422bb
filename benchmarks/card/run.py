"""Runs the stages of a plan within the time that there is, and writes what there is at the end of it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.card.model import choose_model
from benchmarks.card.plan import (
    CARD_ARMS,
    CARD_WORKLOADS,
    SET_UP,
    TESTS,
    Stage,
    allocate,
    page_seconds,
    stages_of,
    timing_of,
)
from benchmarks.card.processes import Stop, adopt_orphans
from benchmarks.card.report.page import write_page
from benchmarks.card.results import CUT, DONE, FAILED, SKIPPED, CardResults
from benchmarks.card.stages.arms import WORKER, run_arm
from benchmarks.card.stages.correctness import PYTEST, run_tests
from benchmarks.card.stages.set_up import SETTING_UP, set_up
from benchmarks.suite.suites import Suite

Say = Callable[[str], None]


class CardRun:
    """A run, or the continuation of one.

    Args:
        suite: the device's suite.
        minutes: how long it may take, from ``started`` to its end.
        out: folder of the results, continued if they are there.
        model: a folder, or a known model's name. None: the suite's choice.
        arms: the arms, the most important first.
        workloads: the workloads, the most important first.
        retry_failed: whether stages and tests that failed are run again.
        say: called with each line about the progress.
        started: when the time began, by ``time.time()``. None: now.
        setting_up: the command of the set-up; tests replace it, and the next two.
        worker: the command of an arm's process.
        pytest: the command of the tests.

    Raises:
        ValueError: the model can't be used, or ``out`` has results of another suite or model.
    """

    def __init__(
        self,
        suite: Suite,
        minutes: float,
        out: Path,
        *,
        model: str | None = None,
        arms: Sequence[str] = CARD_ARMS,
        workloads: Sequence[str] = CARD_WORKLOADS,
        retry_failed: bool = False,
        say: Say = print,
        started: float | None = None,
        setting_up: Sequence[str] = SETTING_UP,
        worker: Sequence[str] = WORKER,
        pytest: Sequence[str] = PYTEST,
    ) -> None:
        self.suite = suite
        self.total = 60 * minutes
        self._deadline = time.monotonic() + self.total - (time.time() - started if started else 0.0)
        self._model, self._arms, self.workloads, self._say = model, list(arms), list(workloads), say
        self._commands = {SET_UP: setting_up, TESTS: pytest, "": worker}
        self._stop = Stop()
        self.model = choose_model(suite, model)
        self.results = CardResults(out.resolve() / "results.json")
        data = self.results.data
        mine = {"suite": suite.name, "model": self.model.name}
        for name, value in mine.items():
            if data[name] not in ("", value):
                raise ValueError(f"{out} holds results of {name} {data[name]}, not {value}: choose another folder.")
        data.update(mine)
        if retry_failed:
            self.results.forget_failures()

    def plan(self) -> list[Stage]:
        """Return the stages that are still to be run, with their seconds, and those that are left out."""
        return self._allocated(Counter())

    def run(self) -> int:
        """Run the plan; return 0, or 2 if nothing can run here, or 128 and the number of the signal that ended it."""
        folder = self.results.folder
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        threading.Thread(target=self._prepare_page, daemon=True).start()
        with self._ending_in_time():
            plan = self.plan()
            self._note_plan(plan)
            call: dict[str, Any] = {"began": time.strftime("%Y-%m-%d %H:%M:%S"), "minutes": self.total / 60}
            self.results.data["calls"].append(call)
            self.results.save()
            began = self._deadline - self.total
            refused = self._run_stages()
            if not refused:
                self._note_skipped()
            call["how"] = self._how(refused)
            call["seconds"] = round(time.monotonic() - began, 1)
            self.results.save()
            page = write_page(self.results)
            self._say(f"{call['how'].removesuffix('.')}. {page}")
        return 2 if refused else 128 + self._stop.signal if self._stop.signal else 0

    def _prepare_page(self) -> None:
        """Import what the page's figures need, while the set-up runs: transformers takes seconds that the end lacks."""
        with contextlib.suppress(Exception):  # the page says what is wrong
            import jinja2  # noqa: F401

            self.model.config().architecture  # noqa: B018

    def _run_stages(self) -> str:
        """Run stage after stage; return why nothing can run here, if that is so."""
        tried: Counter[str] = Counter()
        while not self._stop.why:
            stage = next((one for one in self._allocated(tried) if one.seconds), None)
            if stage is None:
                return ""
            tried[stage.name] += 1
            self._say(f"{stage.name}, {stage.seconds:.0f} s: {stage.what}")
            began = time.monotonic()
            state, why = self._run_stage(stage, began + stage.seconds)
            self.results.data["calls"][-1]["seconds"] = round(self.total - (self._deadline - time.monotonic()), 1)
            self.results.stage(stage.name, state, seconds=time.monotonic() - began, limit=stage.seconds, why=why)
            self._say(f"  {state} after {time.monotonic() - began:.0f} s{': ' + why if why else ''}")
            if stage.name == SET_UP and state != DONE:
                return "" if self._stop.why else why
            write_page(self.results)  # if this process is killed, this is the page
        return ""

    def _run_stage(self, stage: Stage, until: float) -> tuple[str, str]:
        environment = self._environment()
        if stage.name == SET_UP:
            return set_up(self.suite, self._model, self.results, environment, until, self._stop, self._commands[SET_UP])
        if stage.name == TESTS:
            command = self._commands[TESTS]
            gpus = self.suite.gpus
            return run_tests(self.results, environment, until, self._stop, self._say, gpus=gpus, command=command)
        return run_arm(stage, self.suite, self.results, environment, until, self._stop, self._say, self._commands[""])

    def _allocated(self, tried: Counter[str]) -> list[Stage]:
        """Divide the time that is left among the stages that are left. The set-up runs in each call."""
        loads = [one.load_seconds for one in self.results.records if one.load_seconds is not None]
        loaded = min(loads, default=None)
        if loaded is not None and len(set(loads)) == 1:
            loaded = max(0.0, loaded - timing_of(self.suite).compile)  # of the first load; the next one finds it done
        stages = stages_of(self.suite, self.total, self._arms, self.workloads, loaded=loaded)
        todo = [one for one in stages if tried[one.name] == 0 or (one.arm and tried[one.name] == 1)]
        todo.sort(key=lambda one: (one.round, tried[one.name]))  # what was cut is tried once more, before another round
        todo = [one for one in todo if one.name == SET_UP or not self.results.is_over(one.name)]
        failed = [name for name, one in self.results.data["stages"].items() if one.get("state") == FAILED]
        todo = [one for one in todo if not (one.round and one.arm in failed)]  # it would fail again
        return allocate(todo, self._deadline - time.monotonic() - page_seconds(self.total))

    def _note_plan(self, plan: Sequence[Stage]) -> None:
        """Note the plan in the results, beside what earlier calls planned."""
        notes = {one["name"]: one for one in self.results.data["plan"]}
        for stage in filter(_is_worth_saying, plan):
            note = {"name": stage.name, "what": stage.what, "seconds": round(stage.seconds, 1)}
            notes[stage.name] = {**note, "why_not": stage.why_not}
        order = [one.name for one in stages_of(self.suite, self.total, self._arms, self.workloads)]
        self.results.data["plan"] = sorted(notes.values(), key=lambda one: _index(order, one["name"]))
        for stage in filter(_is_worth_saying, plan):
            why = f": {stage.why_not}" if stage.why_not else ""
            self._say(f"plan: {stage.seconds:5.0f} s  {stage.name}{why or ': ' + stage.what}")

    def _note_skipped(self) -> None:
        states = self.results.data["stages"]
        for stage in filter(_is_worth_saying, self._allocated(Counter())):
            if states.get(stage.name, {}).get("state") not in (DONE, FAILED, CUT):
                why = stage.why_not or f"{self._stop.why or 'the time was over'} before it began"
                self.results.stage(stage.name, SKIPPED, why=why)

    def _how(self, refused: str) -> str:
        if refused:
            return f"nothing could run: {refused}"
        if self._stop.why:
            return self._stop.why
        states = [one.get("state") for one in self.results.data["stages"].values()]
        left = sum(state in (CUT, SKIPPED) for state in states)
        return f"ended with {left} stage{'s' * (left != 1)} cut or left out" if left else "finished"

    def _environment(self) -> dict[str, str]:
        # Compiled kernels are shared by the arms, and by a later call.
        caches = {"VLLM_CACHE_ROOT": str(self.results.folder / "cache" / "vllm")}
        return {**{name: os.environ.get(name, value) for name, value in caches.items()}, "HF_HUB_OFFLINE": "1"}

    @contextlib.contextmanager
    def _ending_in_time(self) -> Iterator[None]:
        """Let signals end the run with a page; and if even that hangs, end this process when the time is over."""
        adopt_orphans()
        earlier = {
            one: signal.signal(one, self._stop.on_signal) for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        }
        last = threading.Timer(max(1.0, self._deadline - time.monotonic()), _leave)
        last.daemon = True
        last.start()
        try:
            yield
        finally:
            last.cancel()
            for one, handler in earlier.items():
                signal.signal(one, handler)


def _is_worth_saying(stage: Stage) -> bool:
    """Whether a stage is a part of the plan: a further round that has no time is none."""
    return stage.seconds > 0 or not stage.round


def _index(order: Sequence[str], name: str) -> int:
    return order.index(name) if name in order else len(order)


def _leave() -> None:
    for one in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            one.kill()
    os._exit(124)
