"""Numbers with their nouns, for messages."""

from __future__ import annotations


def counted(number: float, noun: str, plural: str | None = None) -> str:
    """Return ``"1 row"`` or ``"2 rows"``. ``plural``: the noun with an ending other than ``s``."""
    shown = int(number) if number == int(number) else number
    return f"{shown} {noun if number == 1 else plural or f'{noun}s'}"
