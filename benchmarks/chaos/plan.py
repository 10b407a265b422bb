"""Which fault comes when."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from typing import NamedTuple

from benchmarks.chaos.faults import FAULTS, Fault, Mode


class Planned(NamedTuple):
    """One round of the plan.

    Attributes:
        number: of the round, from 0.
        fault: what happens.
        mode: where the engine runs.
        seed: of everything else in the round that is random.
    """

    number: int
    fault: Fault
    mode: Mode
    seed: int


def planned(seed: int, left_out: Collection[str] = ()) -> Iterator[Planned]:
    """Yield rounds without end, the same for a seed. All faults come once in a random order, then again, and so on.

    Args:
        seed: of the plan.
        left_out: names of faults that this machine can't have.
    """
    rng = random.Random(seed)
    number = 0
    while True:
        faults = [fault for fault in FAULTS if fault.name not in left_out]
        if not faults:
            return
        rng.shuffle(faults)
        for fault in faults:
            yield Planned(number, fault, rng.choice(fault.modes), rng.getrandbits(32))
            number += 1
