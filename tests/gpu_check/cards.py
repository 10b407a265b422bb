"""Cards as NVIDIA's driver reports them."""

from __future__ import annotations

from typing import NamedTuple

GIB = 1 << 30


class FakeCard(NamedTuple):
    """A card: what the driver calls it, its memory in GiB as the driver reports it, and its compute capability."""

    name: str
    gib: float
    capability: tuple[int, int]


CARDS = {
    "t4": FakeCard("Tesla T4", 15.0, (7, 5)),
    "a10g": FakeCard("NVIDIA A10G", 22.5, (8, 6)),
    "l4": FakeCard("NVIDIA L4", 22.5, (8, 9)),
    "a100-40gb": FakeCard("NVIDIA A100-SXM4-40GB", 40.0, (8, 0)),
    "a100-80gb": FakeCard("NVIDIA A100-SXM4-80GB", 80.0, (8, 0)),
    "h100": FakeCard("NVIDIA H100 80GB HBM3", 79.65, (9, 0)),
    "h200": FakeCard("NVIDIA H200", 140.4, (9, 0)),
    "b200": FakeCard("NVIDIA B200", 179.1, (10, 0)),
}


def uuid(number: int) -> str:
    """Return the UUID of a made-up GPU."""
    return f"GPU-{number:08x}-aaaa-bbbb-cccc-0123456789ab"


def fake_gpus(*cards: str, free: dict[int, float] | None = None) -> str:
    """Return the value of ``FAKE_GPUS`` for these cards.

    Args:
        cards: their names in ``CARDS``.
        free: GiB of free memory, by the number of the card. The others are idle.
    """
    lines = []
    for number, card in enumerate(cards):
        name, gib, (major, minor) = CARDS[card]
        left = (free or {}).get(number, gib)
        lines.append(f"{name}|{int(gib * GIB)}|{int(left * GIB)}|{major}|{minor}|{uuid(number)}")
    return ";".join(lines)
