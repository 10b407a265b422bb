"""The result of one check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warning", "failure", "skipped"]


@dataclass(frozen=True)
class Check:
    """The result of one check.

    Args:
        name: what was checked.
        status: the result. ``"skipped"``: it could not be checked, or there is nothing to check.
        seen: what was found, and for a failure what to do.
    """

    name: str
    status: Status
    seen: str
