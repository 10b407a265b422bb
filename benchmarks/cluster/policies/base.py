"""What a policy is: it gets rows as the table streams in, and says which row a replica gets next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.cluster.replica import EngineSize, Replica
from benchmarks.cluster.steps import StepSeconds
from benchmarks.cluster.traces import Row


@dataclass(frozen=True)
class Setting:
    """What a policy knows from the start.

    Args:
        replicas: how many engines.
        size: the limits of each.
        seconds: how long their steps take.
        max_tokens: the most tokens of an answer.
        seed: of everything random.
    """

    replicas: int
    size: EngineSize
    seconds: StepSeconds
    max_tokens: int
    seed: int = 1


class Policy(ABC):
    """Chooses the replica of each row, and the order of each replica's rows.

    Attributes:
        woken: replicas that should look for rows.
        batch: rows of an ``add``, if the policy asks for another number than the command. 0: the whole table at once.

    Args:
        setting: what it knows from the start.
    """

    batch: int | None = None

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.woken: set[int] = set()

    @abstractmethod
    def add(self, rows: Sequence[Row]) -> None:
        """Take rows of the table."""

    def finish(self) -> None:  # noqa: B027
        """Learn that there are no more rows."""

    @abstractmethod
    def next(self, place: int, replica: Replica) -> Row | None:
        """Return the row to send to a replica now. None: there is none."""

    @abstractmethod
    def answered(self, place: int, rows: Sequence[Row]) -> None:
        """Learn that a replica has answered rows."""


class Assigning(Policy):
    """Gives each row to a replica at once. The replica has them in the order in which they came."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._rows: list[deque[Row]] = [deque() for _ in range(setting.replicas)]
        self._most = 2 * setting.size.max_num_seqs  # all that a step could begin: the rest waits here, in order

    def assign(self, place: int, rows: Sequence[Row]) -> None:
        """Give rows to a replica."""
        self._rows[place].extend(rows)
        self.woken.add(place)

    def next(self, place: int, replica: Replica) -> Row | None:
        """Return the replica's first row."""
        rows = self._rows[place]
        return rows.popleft() if rows and len(replica.waiting) < self._most else None

    def answered(self, place: int, rows: Sequence[Row]) -> None:
        """Nothing changes."""
