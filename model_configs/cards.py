"""The GPUs that memory plans can be made for, read from ``overlays/cards.toml``."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from daft_vllm.errors import OptionError, suggest

GIB = 2**30
_FILE = Path(__file__).with_name("overlays") / "cards.toml"


@dataclass(frozen=True)
class Card:
    """One kind of GPU.

    Args:
        name: the short name that ``--gpu`` takes.
        full_name: what the driver calls it.
        memory_bytes: memory that a process can use, as CUDA reports it.
        bandwidth: bytes a second from its memory.
        flops: floating point operations a second with 16-bit numbers, without sparsity.
        compute_capability: NVIDIA's, ``"8.9"`` for example.
        engine_args: arguments of vLLM's engine on this card, by vLLM's names.
        why: the reason for each of them, by the argument's name.
        source: where the numbers come from.
    """

    name: str
    full_name: str
    memory_bytes: int
    bandwidth: float
    flops: float
    compute_capability: str
    source: str
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    why: Mapping[str, str] = field(default_factory=dict)


@functools.cache
def cards() -> dict[str, Card]:
    """Return the known cards by name."""
    data = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    found = {}
    for name, values in data.items():
        found[name] = Card(
            name=name,
            memory_bytes=int(values.pop("memory_gib") * GIB),
            bandwidth=values.pop("bandwidth_gb") * 1e9,
            flops=values.pop("tflops") * 1e12,
            **values,
        )
    return found


def card_of(name: str) -> Card:
    """Return a card by its name, in any case.

    Raises:
        OptionError: it isn't known.
    """
    by_name = {known.lower(): card for known, card in cards().items()}
    if name.lower() not in by_name:
        raise OptionError(f"there is no card {name!r}.{suggest(name, cards())} There are {', '.join(cards())}.")
    return by_name[name.lower()]


def card_named(full_name: str) -> Card | None:
    """Return the card with this name in the driver; None if it isn't known."""
    return next((card for card in cards().values() if card.full_name == full_name), None)
