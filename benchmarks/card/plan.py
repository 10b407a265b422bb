"""What a run does, in which order, and how many seconds each part of it gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.suite.arms import ARMS
from benchmarks.suite.suites import Suite

SET_UP, TESTS = "set-up", "tests"
CARD_ARMS = ("ours-stream", "oracle-proc", "naive-64", "daft-provider", "ray-data")
"""The most important comparison first: what has no time is left out from the end."""
CARD_WORKLOADS = ("blog", "guided", "tiny", "instructions")
ROUNDS = 3
"""At most: more rounds come after all arms, while time is left."""
TESTS_SHARE = 0.25
LEAST_MINUTES = 2.0
MOST_MINUTES = 600.0
_START_SECONDS = 5.0
"""From the start of an arm's process to the start of its load."""
_SLOW_LOAD = 1.3
"""What an arm that loads the model within each run takes for it: Ray itself has to start too."""


@dataclass(frozen=True)
class Timing:
    """Seconds that parts of a run are expected to take on a device.

    Args:
        set_up: looking at the device and writing the model.
        tests: the least that is worth starting the tests for: one engine.
        compile: what the first load takes more than a later one, which finds compiled kernels.
        load: from the start of an arm's process to its first row.
        run: the main workload, ``blog``, its short runs before included.
        more: each of the other workloads.
    """

    set_up: float
    tests: float
    compile: float
    load: float
    run: float
    more: float


# Of the GPU's seconds, nothing was measured here: they are what vLLM's logs of 8B models on such cards show, roundly. A
# stage that takes less leaves its time to the next ones, and the plan is made anew before each. The CPU's: two cores.
_GPU = Timing(set_up=25, tests=60, compile=30, load=35, run=20, more=12)
_CPU = Timing(set_up=25, tests=60, compile=0, load=30, run=18, more=10)


@dataclass(frozen=True)
class Stage:
    """A part of a run.

    Args:
        name: its name in the results.
        what: what it does, in words.
        least: seconds without which it isn't worth starting.
        most: seconds that it can use.
        seconds: what it gets. 0: it is left out.
        arm: the arm that it runs. Empty: none.
        load: seconds of it until the arm's first row.
        round: the round that it belongs to.
        workloads: what the arm runs, in this order.
        why_not: why it is left out.
    """

    name: str
    what: str
    least: float
    most: float
    seconds: float = 0.0
    arm: str = ""
    load: float = 0.0
    round: int = 0
    workloads: tuple[str, ...] = ()
    why_not: str = ""


def timing_of(suite: Suite) -> Timing:
    """Return what is expected of a device."""
    return _GPU if suite.gpus else _CPU


def page_seconds(total: float) -> float:
    """Return the seconds that are kept for ending the last child processes and for writing the page."""
    return min(15.0, max(6.0, 0.03 * total))


def stages_of(
    suite: Suite, total: float, arms: Sequence[str], workloads: Sequence[str], *, loaded: float | None = None
) -> list[Stage]:
    """Return all stages but the page in the order in which they run, without seconds.

    Args:
        suite: the device's suite.
        total: seconds of the whole run.
        arms: the arms, the most important first.
        workloads: the workloads, the most important first.
        loaded: seconds of the shortest load so far, whose compiled kernels the next one finds. None: there was none.
    """
    timing = timing_of(suite)
    if loaded is not None:
        timing = replace(timing, load=max(timing.load, loaded + _START_SECONDS), compile=0)
    tests = TESTS_SHARE * total
    stages = [
        Stage(SET_UP, "which device this is, versions, the model's folder", timing.set_up, 2 * timing.set_up),
        Stage(TESTS, "pytest -m gpu: each feature on the device", timing.tests, tests),
    ]
    for round_number in range(ROUNDS):
        for arm in arms:
            stages.append(_arm_stage(arm, round_number, tuple(workloads), timing, first=len(stages) == 2))
    return stages


def arm_stage_name(arm: str, round_number: int) -> str:
    """Return the name of an arm's stage."""
    return f"{arm}, round {round_number + 1}" if round_number else arm


def allocate(stages: Sequence[Stage], seconds: float) -> list[Stage]:
    """Return the stages with their seconds, which together are at most ``seconds``.

    In their order, each of the first round gets its least, if that is left. A stage that doesn't fit is left out, and
    so are the further arms, which matter less. What then remains is shared by those that can use it, and only what even
    they can't use is for the next round.
    """
    left = max(0.0, seconds)
    chosen: list[Stage] = []
    for number in sorted({stage.round for stage in stages}):
        some = _allocate_round([stage for stage in stages if stage.round == number], left)
        left -= sum(stage.seconds for stage in some)
        chosen += some
    return chosen


def _allocate_round(stages: Sequence[Stage], left: float) -> list[Stage]:
    chosen: list[Stage] = []
    full = False
    for stage in stages:
        if stage.most < stage.least:
            why = f"it needs {stage.least:.0f} s, and its share of the time is {stage.most:.0f} s"
            chosen.append(replace(stage, seconds=0.0, why_not=why))
        elif (stage.arm and full) or stage.least > left:
            full = full or bool(stage.arm)
            why = f"it needs {stage.least:.0f} s, and {left:.0f} s are left for it"
            chosen.append(replace(stage, seconds=0.0, why_not=why))
        else:
            left -= stage.least
            chosen.append(replace(stage, seconds=stage.least, why_not=""))
    wanted = sum(one.most - one.least for one in chosen if one.seconds)
    share = min(1.0, left / wanted) if wanted > 0 else 0.0
    return [replace(one, seconds=one.least + share * (one.most - one.least)) if one.seconds else one for one in chosen]


def _arm_stage(arm: str, round_number: int, workloads: tuple[str, ...], timing: Timing, *, first: bool) -> Stage:
    entry = ARMS[arm]
    # An arm that loads the model within each run gets one run: a second would be a second load.
    mine = workloads if entry.keeps_engine else workloads[:1]
    load = timing.load if entry.keeps_engine else _SLOW_LOAD * timing.load
    least = load + timing.run + (timing.compile if first else 0.0)
    return Stage(
        arm_stage_name(arm, round_number),
        f"rows/s: {', '.join(mine)}{'' if entry.keeps_engine else ' only: it loads the model for each run'}",
        least,
        least + 1.5 * timing.more * (len(mine) - 1),
        arm=arm,
        load=load,
        round=round_number,
        workloads=mine,
    )
