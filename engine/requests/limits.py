"""How much time rows have."""

from __future__ import annotations

import time
from datetime import datetime
from typing import NamedTuple

from daft_vllm.engine.requests.outcome import Outcome


class Limits(NamedTuple):
    """How much time a call's rows have.

    Attributes:
        row_seconds: how long each may be inside vLLM. None: any time.
        deadline: when all of them end, in seconds of ``time.time()``. None: never.
    """

    row_seconds: float | None = None
    deadline: float | None = None

    def past_deadline(self) -> Outcome | None:
        """Return the outcome of a row without an answer if the deadline is over, else None."""
        if self.deadline is None or time.time() < self.deadline:
            return None
        when = datetime.fromtimestamp(self.deadline).astimezone().isoformat(" ", "seconds")
        return Outcome.failed("deadline", f"the deadline, {when}, came before the answer: run the job again later")


NO_LIMITS = Limits()
"""Any time."""
