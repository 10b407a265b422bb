"""One batch of rows on its way through an actor."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import NamedTuple

from daft import Series

from daft_vllm.engine import Outcome, Request


class Batch(NamedTuple):
    """A batch, and what becomes of its rows.

    Attributes:
        name: the name of the batch's first series.
        rows: how many rows it has.
        refused: the outcomes of rows that are not sent to the engine, by row number.
        names: the name of each row's format. Each is None if all rows have the same format.
        row_keys: the name of each row in a store. Each is None if rows have none.
        requests: the rows that are sent to the engine, by row number.
    """

    name: str
    rows: int
    refused: Mapping[int, Outcome]
    names: list[str | None]
    row_keys: list[str | None]
    requests: Mapping[int, Request]

    def outcomes(self, answers: Sequence[Outcome]) -> dict[int, Outcome]:
        """Return the outcomes of all rows by row number, with these answers to its requests."""
        return {**self.refused, **dict(zip(self.requests, answers, strict=True))}


class Asked(NamedTuple):
    """Requests for the engine.

    Attributes:
        requests: the requests.
        each: takes the index and the outcome of each as soon as it is there. None: nobody does.
    """

    requests: list[Request]
    each: Callable[[int, Outcome], None] | None = None


Steps = Generator[Asked, list[Outcome], Series]
"""The steps of a batch: what is asked, then its outcomes, and in the end the column."""


def next_step(steps: Steps, answers: list[Outcome] | None = None) -> Asked | Series:
    """Return what is asked next, or the column if nothing is. ``answers``: the outcomes of the step before."""
    try:
        return next(steps) if answers is None else steps.send(answers)
    except StopIteration as end:
        column: Series = end.value
        return column
